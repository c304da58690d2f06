-- ARGV: deadline, id, bound. Returns 1; 0, without effect, for a session that has ended, has no key, or is bound.
local key = SESSION .. ARGV[2]
local fields = redis.call('HMGET', key, 'username', 'device_key', 'bound')
if not fields[2] or fields[3] then
  return 0
end
redis.call('HSET', key, 'bound', ARGV[3])
redis.call('HSET', BOUND_ACCOUNTS, fields[1], ARGV[3])
note_login_change()
return 1
