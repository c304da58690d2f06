-- ARGV: deadline, id, username, fingerprint, created, seen, expires, ends, how many sessions the user may have, the values
-- of `optional` (each perhaps empty), the ids of the sessions to end. If the user has more, the oldest others end, expired
-- ones first.
local optional = {'shown_name', 'provider', 'subject', 'sid', 'authenticated', 'address', 'browser', 'scheme',
  'device_key', 'bound', 'id_token'}
local id = ARGV[2]
for position = 10 + #optional, #ARGV do
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
for position, field in ipairs(optional) do
  if ARGV[9 + position] ~= '' then
    redis.call('HSET', SESSION .. id, field, ARGV[9 + position])
  end
end
for _, set in ipairs(sets_at(ARGV[4], ARGV[12], ARGV[13])) do
  redis.call('SADD', set, id)
end
redis.call('ZADD', SESSIONS, ARGV[7], id)
redis.call('SADD', SESSIONS_OF .. ARGV[3], id)
return 1
