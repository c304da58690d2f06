-- ARGV: deadline, id, fields and their new values. Without effect on a session that has ended.
local id = ARGV[2]
if redis.call('EXISTS', SESSION .. id) == 1 then
  redis.call('HSET', SESSION .. id, unpack(ARGV, 3))
  note_login_change()
end
return 1
