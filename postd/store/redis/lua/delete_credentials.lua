-- ARGV: deadline, kind, whether of any account ('1' or ''), the account, ids. Returns how many there were.
local kind, any, account = KINDS[ARGV[2]], ARGV[3] == '1', ARGV[4]
local deleted = 0
for position = 5, #ARGV do
  local key = redis.call('GET', kind.of_id .. ARGV[position])
  if key and (any or redis.call('HGET', kind.record .. key, 'account') == account) then
    deleted = deleted + delete_credential(kind, key)
  end
end
return deleted
