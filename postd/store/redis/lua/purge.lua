-- ARGV: deadline, now, now less the time that nonces are kept after they expire, how many of each kind to remove at most.
-- Returns whether there may be more (1 or 0).
redis.call('DEL', OLD_CHANGES) -- that of a node of an older version, which may still run
local most = tonumber(ARGV[4])
local more = 0
local function expired(index, now)
  local found = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)
  if #found == most then
    more = 1
  end
  return found
end

for _, id in ipairs(expired(SESSIONS, ARGV[2])) do
  end_session(id)
end
for _, nonce in ipairs(expired(NONCES, ARGV[3])) do
  redis.call('DEL', NONCE .. nonce)
  redis.call('ZREM', NONCES, nonce)
end
for _, key in ipairs(expired(IDEMPOTENCY_KEYS, ARGV[2])) do
  redis.call('DEL', IDEMPOTENCY_KEY .. key)
  redis.call('ZREM', IDEMPOTENCY_KEYS, key)
end
for _, key in ipairs(expired(FAILURES, ARGV[2])) do
  redis.call('ZREMRANGEBYSCORE', FAILURE .. key, '-inf', ARGV[2])
  local first = redis.call('ZRANGE', FAILURE .. key, 0, 0, 'WITHSCORES')
  if first[2] then
    redis.call('ZADD', FAILURES, first[2], key)
  else
    redis.call('ZREM', FAILURES, key)
  end
end
return more
