-- ARGV: deadline, name, a new value. Returns the stored value, the new one if there was none.
return redis.call('GET', KEY .. ARGV[2]) or (redis.call('SET', KEY .. ARGV[2], ARGV[3]) and ARGV[3])
