-- ARGV: deadline, credential id, the time of use, the signature counter, whether it is backed up (1 or 0). Returns 1; 0 if
-- the passkey is deleted, or the counter is not greater than before and not both are 0.
local before = tonumber(redis.call('HGET', PASSKEY .. ARGV[2], 'sign_count'))
local count = tonumber(ARGV[4])
if not before or (count <= before and not (count == 0 and before == 0)) then
  return 0
end
redis.call('HSET', PASSKEY .. ARGV[2], 'used', ARGV[3], 'sign_count', ARGV[4], 'backed_up', ARGV[5])
return 1
