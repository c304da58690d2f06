-- ARGV: deadline, id, bound. Without effect on a session that has ended, has no key, or is bound.
local key = SESSION .. ARGV[2]
local fields = redis.call('HMGET', key, 'username', 'device_key', 'bound')
if fields[2] and not fields[3] then
  redis.call('HSET', key, 'bound', ARGV[3])
  redis.call('HSET', BOUND_ACCOUNTS, fields[1], ARGV[3])
end
return 1
