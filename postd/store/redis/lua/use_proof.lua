-- ARGV: deadline, proof, expiry. Returns 1 for the first use, else 0.
--
-- A used proof is a nonce with the count 1, as for versions that have no PROOFS.
if tonumber(ARGV[3]) <= tonumber(redis.call('HGET', CLOCK, 'proofs') or '0')
    or redis.call('SADD', NONCE .. ARGV[2], 1) == 0 then
  return 0
end
redis.call('ZADD', PROOFS, ARGV[3], ARGV[2])
return 1
