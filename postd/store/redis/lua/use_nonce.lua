-- ARGV: deadline, nonce, count, expiry. Returns 1 for the first use, else 0.
if tonumber(ARGV[4]) <= tonumber(redis.call('HGET', CLOCK, 'nonces') or '0')
    or redis.call('SADD', NONCE .. ARGV[2], ARGV[3]) == 0 then
  return 0
end
redis.call('ZADD', NONCES, ARGV[4], ARGV[2])
return 1
