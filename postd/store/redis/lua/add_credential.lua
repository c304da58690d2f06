-- ARGV: deadline, kind, key, how many its account may have, the names and values of the fields. Returns 1; 0 if the key is
-- taken, or there are as many that have the same entry and have not expired.
local kind, key = KINDS[ARGV[2]], ARGV[3]
local fields = {}
for position = 5, #ARGV, 2 do
  fields[ARGV[position]] = ARGV[position + 1]
end
if redis.call('EXISTS', kind.record .. key) == 1 then
  return 0
end
local others = 0
for _, other in ipairs(redis.call('SMEMBERS', kind.of_account .. fields['account'])) do
  local found = redis.call('HMGET', kind.record .. other, 'entry', 'expires')
  local lasts = not found[2] or found[2] == 'inf' or tonumber(found[2]) > tonumber(fields['created'])
  if found[1] == fields['entry'] and lasts then
    others = others + 1
  end
end
if others >= tonumber(ARGV[4]) then
  return 0
end
redis.call('HSET', kind.record .. key, unpack(ARGV, 5))
redis.call('SET', kind.of_id .. fields['id'], key)
redis.call('SADD', kind.of_account .. fields['account'], key)
redis.call('ZADD', kind.all, fields['expires'] or 'inf', key)
return 1
