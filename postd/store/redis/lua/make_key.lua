-- ARGV: limit, name, a new value. Returns the value that there is from now on.
return redis.call('GET', KEY .. ARGV[2]) or (redis.call('SET', KEY .. ARGV[2], ARGV[3]) and ARGV[3])
