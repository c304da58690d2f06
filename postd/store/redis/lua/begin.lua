-- Check that the database is ours, and that no write was lost since the last connection. Run on each new connection.
--
-- ARGV: the known schema, the replication id of the server, a tag, the largest known id and revision, the step, whether
-- to create ('1' or ''), and an id for a new collection. Returns the result ('foreign' with a key, 'other' with the
-- schema, 'missing', 'same', 'new' or 'diverged'), and after the last three the largest id and the revision from now on.
--
-- A promoted replica, or a server that was restarted from its disk, may lack the last acknowledged writes, an unknown
-- number of them. Their ids and revisions must not be assigned again: both skip a step, beyond all known ones, and
-- revisions go on from the clock, as the same old file may be restored again. The first node to connect does that for
-- all.
local types = {[SCHEMA] = 'string', [HISTORY] = 'string', [LAST_ID] = 'string', [VERSION] = 'hash', [POSTS] = 'zset',
  [DETAILS] = 'zset', [COLLECTION] = 'hash', [CHANGES] = 'stream', [CHANGED] = 'zset', [OLD_CHANGES] = 'stream'}
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
  local time = redis.call('TIME')
  revision = math.max(math.max(revision, seen_revision) + tonumber(ARGV[6]), time[1] * 1000000 + time[2])
end
if found ~= 'same' then
  redis.call('DEL', HISTORY) -- first: it needs no memory, so that a full server can still be read
  redis.call('SET', SCHEMA, ARGV[1])
  redis.call('SET', HISTORY, ARGV[2])
  redis.call('SET', LAST_ID, exact(last_id))
  redis.call('HSET', VERSION, 'revision', exact(revision), 'tag', ARGV[3])
end
if redis.call('EXISTS', OLD_CHANGES) == 1 then
  -- Of an older version: the log without its texts. A node of that version may still run, and begin another one.
  local entries = redis.call('EXISTS', CHANGES) == 0 and redis.call('XRANGE', OLD_CHANGES, '-', '+') or {}
  redis.call('DEL', OLD_CHANGES)
  local added = {}
  for _, entry in ipairs(entries) do
    local old_revision, fields = decode_entry(entry)
    local id = fields['id']
    added[id] = fields['kind'] == 'added' and old_revision or added[id]
    append_change(old_revision, fields['kind'], id, fields['tag'] or '', fields['kind'] == 'updated' and added[id])
  end
end
if redis.call('EXISTS', COLLECTION) == 0 then
  local time = redis.call('TIME')
  -- Not `call`: a server that is full is not refused for this.
  redis.pcall('HSET', COLLECTION, 'id', ARGV[8], 'began', exact(time[1] * 1000 + math.floor(time[2] / 1000)))
end
return {found, exact(last_id), exact(revision)}
