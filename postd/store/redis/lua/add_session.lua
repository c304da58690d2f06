-- ARGV: deadline, id, username, fingerprint, created, seen, expires, ends, how many sessions the user may have, the ids
-- of the sessions to end. If the user has more, the oldest others end, expired ones first.
local id = ARGV[2]
for position = 10, #ARGV do
  end_session(ARGV[position])
end
local others = redis.call('SMEMBERS', SESSIONS_OF .. ARGV[3])
local excess = #others + 1 - tonumber(ARGV[9])
if excess > 0 then
  local created = {}
  for _, other in ipairs(others) do
    local times = redis.call('HMGET', SESSION .. other, 'created', 'expires')
    local expired = not times[2] or tonumber(times[2]) <= tonumber(ARGV[5])
    created[other] = expired and 0 or tonumber(times[1])
  end
  table.sort(others, function(one, another) return created[one] < created[another] end)
  for position = 1, excess do
    end_session(others[position])
  end
end
redis.call('HSET', SESSION .. id, 'username', ARGV[3], 'fingerprint', ARGV[4], 'created', ARGV[5], 'seen', ARGV[6],
  'expires', ARGV[7], 'ends', ARGV[8])
redis.call('ZADD', SESSIONS, ARGV[7], id)
redis.call('SADD', SESSIONS_OF .. ARGV[3], id)
return 1
