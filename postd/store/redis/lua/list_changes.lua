-- ARGV: the first revision wanted, how many. Returns the latest revision and the
-- entries of the log, as they stand at one moment.
local revision = redis.call('HGET', VERSION, 'revision')
return {revision, redis.call('XRANGE', CHANGES, ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])}
