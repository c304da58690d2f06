-- ARGV: deadline, tag, id, the expected text or '' for any. Returns 'missing', 'changed' or 'done'.
local id = ARGV[3]
local member = find_post(id)
if not member then
  return 'missing'
end
local text = text_of(member, id)
if ARGV[4] ~= '' and ARGV[4] ~= text then
  return 'changed'
end
redis.call('ZREM', POSTS, member)
log_change(ARGV[2], 'deleted', id, text)
return 'done'
