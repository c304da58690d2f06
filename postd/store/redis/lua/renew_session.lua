-- ARGV: deadline, id, seen, expires. Without effect on a session that has ended.
local id = ARGV[2]
if redis.call('EXISTS', SESSION .. id) == 1 then
  redis.call('HSET', SESSION .. id, 'seen', ARGV[3], 'expires', ARGV[4])
  redis.call('ZADD', SESSIONS, ARGV[4], id)
end
return 1
