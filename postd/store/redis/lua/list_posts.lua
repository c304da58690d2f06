-- ARGV: after, how many; to have the log as well, the revision of its first entry, and how many may follow that. Returns
-- the revision, the tag, the posts, and the entries of the log, none if more would follow.
local version = redis.call('HMGET', VERSION, 'revision', 'tag')
local changes = {}
if ARGV[3] and version[1] then
  local count = tonumber(version[1]) - tonumber(ARGV[3])
  if count > 0 and count <= tonumber(ARGV[4]) then
    changes = redis.call('XRANGE', CHANGES, ARGV[3] .. '-0', '+')
  end
end
return {version[1], version[2], redis.call('ZRANGEBYSCORE', POSTS, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2]), changes}
