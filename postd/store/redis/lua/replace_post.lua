-- ARGV: deadline, tag, id, text, the expected text or '' for any. Returns 'missing', 'changed' or 'done'.
local id = ARGV[3]
local member = find_post(id)
if not member then
  return 'missing'
end
local text = text_of(member, id)
if ARGV[5] ~= '' and ARGV[5] ~= text then
  return 'changed'
end
if ARGV[4] ~= text then
  log_change(ARGV[2], 'updated', id, text)
  redis.call('ZREM', POSTS, member)
  redis.call('ZADD', POSTS, id, id .. ':' .. ARGV[4])
end
return 'done'
