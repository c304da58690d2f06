-- ARGV: deadline, then for each account the name and the entry of the tokens and passkeys that stay, '-' for none. Returns
-- how many were deleted, resets included.
local deleted = 0
for position = 2, #ARGV, 2 do
  local account, entry = ARGV[position], ARGV[position + 1]
  for _, kind in pairs(KINDS) do
    for _, key in ipairs(redis.call('SMEMBERS', kind.of_account .. account)) do
      if redis.call('HGET', kind.record .. key, 'entry') ~= entry then
        deleted = deleted + delete_credential(kind, key)
      end
    end
  end
  local reset = redis.call('GET', RESET_OF .. account)
  if reset then
    deleted = deleted + delete_reset(reset)
  end
end
return deleted
