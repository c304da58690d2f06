-- ARGV: after, how many. Returns the revision, the tag and the posts.
local version = redis.call('HMGET', VERSION, 'revision', 'tag')
return {version[1], version[2], redis.call('ZRANGEBYSCORE', POSTS, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])}
