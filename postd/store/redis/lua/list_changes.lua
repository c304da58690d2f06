-- ARGV: the first revision, how many. Returns the latest revision, and the entries of the log from the first one on.
local revision = redis.call('HGET', VERSION, 'revision')
return {revision, redis.call('XRANGE', CHANGES, ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])}
