-- ARGV: deadline, now, expiry, a unique id (that of the reservation, if there is one), keys. Returns the new counts.
local keys = {unpack(ARGV, 5)}
for _, key in ipairs(keys) do
  insert_failure(key, ARGV[4], ARGV[3])
  redis.call('ZREM', FAILURE .. reserved(key), ARGV[4])
end
return count_failures(ARGV[2], keys)
