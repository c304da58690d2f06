-- ARGV: deadline, id, username, fingerprint, created, seen, expires, ends, the ids of the sessions to end.
local id = ARGV[2]
for position = 9, #ARGV do
  end_session(ARGV[position])
end
redis.call('HSET', SESSION .. id, 'username', ARGV[3], 'fingerprint', ARGV[4], 'created', ARGV[5], 'seen', ARGV[6],
  'expires', ARGV[7], 'ends', ARGV[8])
redis.call('ZADD', SESSIONS, ARGV[7], id)
redis.call('SADD', SESSIONS_OF .. ARGV[3], id)
return 1
