-- ARGV: deadline, tag, text, details; with an idempotency key also the key, the hash of the request, the time, and the
-- expiry of the key. Returns the id ('reused' if the key was used with another request) and the revision.
local key = ARGV[5] and IDEMPOTENCY_KEY .. ARGV[5]
if key then
  local known = redis.call('HMGET', key, 'request', 'id', 'expires')
  if known[3] and tonumber(known[3]) > tonumber(ARGV[7]) then
    return {known[1] == ARGV[6] and known[2] or 'reused', redis.call('HGET', VERSION, 'revision')}
  end
end
if tonumber(redis.call('GET', LAST_ID)) >= POST_ID_MAX then
  return redis.error_reply('FULL there are no more ids')
end
local id = exact(redis.call('INCR', LAST_ID))
redis.call('ZADD', POSTS, id, id .. ':' .. ARGV[3])
set_details(id, nil, ARGV[4])
if key then
  redis.call('HSET', key, 'request', ARGV[6], 'id', id, 'expires', ARGV[8])
  redis.call('ZADD', IDEMPOTENCY_KEYS, ARGV[8], ARGV[5])
end
return {id, log_change(ARGV[2], 'added', id)}
