-- ARGV: deadline, id, device_key. Returns 1 if the session has that key now, 0 if it has another one, or has ended.
local key = SESSION .. ARGV[2]
if redis.call('EXISTS', key) == 0 then
  return 0
end
local known = redis.call('HGET', key, 'device_key')
if not known then
  redis.call('HSET', key, 'device_key', ARGV[3])
end
return (known or ARGV[3]) == ARGV[3] and 1 or 0
