-- ARGV: limit, tag, text. Returns the id and the revision.
if tonumber(redis.call('GET', LAST_ID)) >= POST_ID_MAX then
  return redis.error_reply('FULL there are no ids any more')
end
local id = exact(redis.call('INCR', LAST_ID))
redis.call('ZADD', POSTS, id, id .. ':' .. ARGV[3])
return {id, changed(ARGV[2], 'added', id, ARGV[3])}
