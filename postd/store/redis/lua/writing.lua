-- Prelude of every script that writes. ARGV[1] is the deadline, in milliseconds of the server's clock.
--
-- Redis refuses a write while it has no memory left, is a replica, lacks replicas or cannot save: at the first writing
-- command of a script, never later. So the first one needs memory, or frees some if the script must work without any.

local time = redis.call('TIME')
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[1]) then
  return redis.error_reply('LATE the deadline has passed')
end
if redis.call('EXISTS', VERSION) == 0 then
  return redis.error_reply('GONE the posts are not in this database any more')
end
