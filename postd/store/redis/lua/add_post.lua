-- add_post
-- ARGV: limit, tag, text; with an idempotency key also that, what it came with, the time, and until when it is
-- remembered. Returns the id ('reused' if the key came with something else) and the revision.
local once = ARGV[4] and ONCE .. ARGV[4]
if once then
  local known = redis.call('HMGET', once, 'request', 'id', 'expires')
  if known[3] and tonumber(known[3]) > tonumber(ARGV[6]) then
    return {known[1] == ARGV[5] and known[2] or 'reused', redis.call('HGET', VERSION, 'revision')}
  end
end
if tonumber(redis.call('GET', LAST_ID)) >= POST_ID_MAX then
  return redis.error_reply('FULL there are no ids any more')
end
local id = exact(redis.call('INCR', LAST_ID))
redis.call('ZADD', POSTS, id, id .. ':' .. ARGV[3])
if once then
  redis.call('HSET', once, 'request', ARGV[5], 'id', id, 'expires', ARGV[7])
  redis.call('ZADD', ONCES, ARGV[7], ARGV[4])
end
return {id, changed(ARGV[2], 'added', id, ARGV[3])}
