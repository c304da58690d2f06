-- ARGV: deadline, fingerprint, subject, sid, one of them perhaps empty. Returns how many sessions ended.
local sets = sets_at(ARGV[2], ARGV[3], ARGV[4])
local found = #sets > 0 and redis.call('SMEMBERS', sets[#sets]) or {}
local ended = 0
for _, id in ipairs(found) do
  if redis.call('EXISTS', SESSION .. id) == 0 then
    redis.call('SREM', sets[#sets], id) -- ended by a node of an older version, which leaves it in the sets
  elseif ARGV[3] == '' or redis.call('HGET', SESSION .. id, 'subject') == ARGV[3] then
    ended = ended + end_session(id)
  end
end
return ended
