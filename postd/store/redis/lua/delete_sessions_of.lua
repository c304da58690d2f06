-- ARGV: deadline, then for each user the name and the fingerprint of the sessions that stay, '-' for none. Returns how
-- many ended.
local ended = 0
for position = 2, #ARGV, 2 do
  for _, id in ipairs(redis.call('SMEMBERS', SESSIONS_OF .. ARGV[position])) do
    if redis.call('HGET', SESSION .. id, 'fingerprint') ~= ARGV[position + 1] then
      ended = ended + end_session(id)
    end
  end
end
return ended
