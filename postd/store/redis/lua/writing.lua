-- Stands in front of every script that writes. ARGV[1] is until when somebody waits for it, in milliseconds of the
-- server's clock.
--
-- Redis refuses a write while it has no memory left, is a replica, misses its replicas or cannot save: at the first
-- command of a script that it would refuse, never later. So the first command that changes anything is one that needs
-- memory, or, where a script is to work without any, one that frees some.

local time = redis.call('TIME')
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[1]) then
  return redis.error_reply('LATE nobody waits for it any more')
end
if redis.call('EXISTS', VERSION) == 0 then
  return redis.error_reply('GONE the posts are not in this database any more')
end
