-- ARGV: deadline, hash of the secret, account, fingerprint, expiry. It replaces an earlier one of the account.
local earlier = redis.call('GET', RESET_OF .. ARGV[3])
redis.call('HSET', RESET .. ARGV[2], 'account', ARGV[3], 'fingerprint', ARGV[4], 'expires', ARGV[5])
if earlier and earlier ~= ARGV[2] then
  delete_reset(earlier)
end
redis.call('SET', RESET_OF .. ARGV[3], ARGV[2])
redis.call('ZADD', RESETS, ARGV[5], ARGV[2])
return 1
