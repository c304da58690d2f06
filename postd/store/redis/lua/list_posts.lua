-- ARGV: after, how many; to have the changes as well, the revision of the first entry of the log, and how many may follow
-- that. Returns the revision, the tag, the posts, and the changes, as `find_changes` returns them.
local version = redis.call('HMGET', VERSION, 'revision', 'tag')
local changes = ARGV[3] and version[1] and find_changes(version[1], ARGV[3], ARGV[4]) or {}
return {version[1], version[2], redis.call('ZRANGEBYSCORE', POSTS, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2]), changes}
