-- Whether this database is ours, and goes on where we know it to have been. Run on each new connection, before
-- anything else.
--
-- ARGV: the schema that we know, the server's name for the history of its data, a tag, the largest id and the largest
-- revision that we have seen, the step, and whether to create ('1' or ''). Returns what was found ('foreign' with a key,
-- 'other' with the schema, 'missing', 'same', 'new' or 'diverged'), the largest id and the revision from now on.
--
-- A replica that became the primary, or a server that comes back with what was on its disk, may lack the last writes,
-- which were acknowledged. Nobody knows how many. No id and no revision of theirs may be given out again: both go on a
-- step further, and beyond all that we have seen. The first node to connect does that for all.
local types = {[SCHEMA] = 'string', [HISTORY] = 'string', [LAST_ID] = 'string', [VERSION] = 'hash', [POSTS] = 'zset',
  [CHANGES] = 'stream'}
for key, wanted in pairs(types) do
  local found = redis.call('TYPE', key)['ok']
  if found ~= 'none' and (found ~= wanted or redis.call('EXISTS', SCHEMA) == 0) then
    return {'foreign', key, '0'}
  end
end
local schema = redis.call('GET', SCHEMA)
if schema and schema ~= ARGV[1] then
  return {'other', schema, '0'}
end
if not schema and ARGV[7] == '' then
  return {'missing', '0', '0'}
end
local last_id = tonumber(redis.call('GET', LAST_ID) or '0')
local revision = tonumber(redis.call('HGET', VERSION, 'revision') or '0')
local seen_id, seen_revision = tonumber(ARGV[4]), tonumber(ARGV[5])
local behind = seen_id > last_id or seen_revision > revision
local found = 'same'
if not schema and not behind then
  found = 'new'
elseif behind or redis.call('GET', HISTORY) ~= ARGV[2] then
  found = 'diverged'
  last_id = math.min(math.max(last_id, seen_id) + tonumber(ARGV[6]), POST_ID_MAX)
  revision = math.max(revision, seen_revision) + tonumber(ARGV[6])
end
if found ~= 'same' then
  redis.call('DEL', HISTORY) -- first: it needs no memory, so that a full server can still be read
  redis.call('SET', SCHEMA, ARGV[1])
  redis.call('SET', HISTORY, ARGV[2])
  redis.call('SET', LAST_ID, exact(last_id))
  redis.call('HSET', VERSION, 'revision', exact(revision), 'tag', ARGV[3])
end
return {found, exact(last_id), exact(revision)}
