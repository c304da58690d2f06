-- ARGV: deadline, key.
redis.call('DEL', FAILURE .. ARGV[2])
redis.call('ZREM', FAILURES, ARGV[2])
return 1
