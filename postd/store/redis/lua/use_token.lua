-- ARGV: deadline, hash, the time of use. Without effect on a token that is deleted, or was used later.
local used = redis.call('HGET', TOKEN .. ARGV[2], 'used')
if used and tonumber(used) < tonumber(ARGV[3]) then
  redis.call('HSET', TOKEN .. ARGV[2], 'used', ARGV[3])
end
return 1
