-- ARGV: limit, now, when it expires, what tells it from others (the id of its reservation, if it has one), keys. Returns
-- what is counted from now on.
local keys = {unpack(ARGV, 5)}
for _, key in ipairs(keys) do
  note_failure(key, ARGV[4], ARGV[3])
  redis.call('ZREM', FAILURE .. reserved(key), ARGV[4])
end
return count_failures(ARGV[2], keys)
