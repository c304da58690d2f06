-- ARGV: the first revision, how many, and the revision from which a client resumes, '' for a listener. Returns the latest
-- revision; for each entry of the log from the first one on: its revision; the kind, '' if nothing is left of the change;
-- the id; and the text and the details, '' if there are none; and the counter of `note_login_change`, nil for 0.
local found = {}
local entries = redis.call('XRANGE', CHANGES, ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
local last = {} -- by the id of a post, the revision of its last change, if that is among these
if #entries > 0 then
  local scored = redis.call('ZRANGEBYSCORE', CHANGED, ARGV[1], (decode_entry(entries[#entries])), 'WITHSCORES')
  for position = 1, #scored, 2 do
    last[scored[position]] = scored[position + 1]
  end
end
for position, entry in ipairs(entries) do
  local revision, fields = decode_entry(entry)
  local kind, id = fields['kind'], fields['id']
  local text, details = '', ''
  if last[id] ~= revision then
    -- Another change of the post followed.
    if ARGV[3] ~= '' then
      kind = ''
    elseif kind ~= 'deleted' then
      text = redis.call('GET', REPLACED .. revision) or ''
      details = redis.call('GET', REPLACED .. revision .. ':details') or ''
    end
  elseif kind ~= 'deleted' then
    local member = find_post(id)
    text = member and text_of(member, id) or ''
    details = find_details(id)
    if ARGV[3] ~= '' and fields['added'] and tonumber(fields['added']) > tonumber(ARGV[3]) then
      kind = 'added'
    end
  end
  if text == '' and kind ~= 'deleted' then
    kind = ''
  end
  found[position] = {revision, kind, id, text, details}
end
local version = redis.call('HMGET', VERSION, 'revision', 'logins')
return {version[1], found, version[2]}
