-- ARGV: deadline, id, keys.
for _, key in ipairs({unpack(ARGV, 3)}) do
  redis.call('ZREM', FAILURE .. reserved(key), ARGV[2])
end
return 1
