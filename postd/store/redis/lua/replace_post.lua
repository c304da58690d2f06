-- ARGV: deadline, tag, id, text, the time or '' if it is unknown, the expected text or '' for any, '1' if the author must
-- be the expected one, the expected author. Returns 'missing', 'not author', 'changed' or 'done'.
local id = ARGV[3]
local member = find_post(id)
if not member then
  return 'missing'
end
local text = text_of(member, id)
local details, details_member = find_details(id)
if ARGV[7] == '1' and (ARGV[8] == '' or ARGV[8] ~= author_of(details)) then
  return 'not author'
end
if ARGV[6] ~= '' and ARGV[6] ~= text then
  return 'changed'
end
if ARGV[4] ~= text then
  log_change(ARGV[2], 'updated', id, text, details)
  redis.call('ZREM', POSTS, member)
  redis.call('ZADD', POSTS, id, id .. ':' .. ARGV[4])
  if ARGV[5] ~= '' then
    local created, updated, author = details:match('^(%d*):(%d*):(.*)$')
    local latest = ARGV[5]
    for _, moment in ipairs({created or '', updated or ''}) do
      if moment ~= '' and tonumber(moment) > tonumber(latest) then
        latest = moment
      end
    end
    set_details(id, details_member, (created or '') .. ':' .. latest .. ':' .. (author or ''))
  end
end
return 'done'
