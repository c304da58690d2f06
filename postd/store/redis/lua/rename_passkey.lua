-- ARGV: deadline, id, account, label. Returns 1; 0 if the account has no passkey with that id.
local key = redis.call('GET', PASSKEY_OF_ID .. ARGV[2])
if not key or redis.call('HGET', PASSKEY .. key, 'account') ~= ARGV[3] then
  return 0
end
redis.call('HSET', PASSKEY .. key, 'label', ARGV[4])
return 1
