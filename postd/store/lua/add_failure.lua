-- ARGV: limit, now, when it expires, what tells it from others, keys. Returns what is counted from now on.
local keys = {unpack(ARGV, 5)}
for _, key in ipairs(keys) do
  redis.call('ZADD', FAILURE .. key, ARGV[3], ARGV[4])
  redis.call('ZADD', FAILURES, 'LT', ARGV[3], key)
end
return count_failures(ARGV[2], keys)
