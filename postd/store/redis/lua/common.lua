-- Prelude of every script, after the names of the keys, in capitals (postd/store/redis/scripts.py).

-- Numbers are returned as text: Lua would round large ones.
local function exact(number)
  return string.format('%.0f', number)
end

-- Returns an entry of a log: the revision as text, and its fields as a table.
local function decode_entry(entry)
  local fields = {}
  for position = 1, #entry[2], 2 do
    fields[entry[2][position]] = entry[2][position + 1]
  end
  return entry[1]:match('%d+'), fields
end

-- Adds an entry to the log of changes. `added` is nil, or the revision that added the post.
local function append_change(revision, kind, id, tag, added)
  if added then
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id, 'tag', tag,
      'added', added)
  else
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id, 'tag', tag)
  end
  redis.call('ZADD', CHANGED, revision, id)
  if revision % 100 == 0 then
    redis.call('ZREMRANGEBYSCORE', CHANGED, '-inf', exact(revision - CHANGES_KEPT))
  end
end

-- Increments the revision, and logs the change that it counts, with the tag of the version that it makes. `text` and
-- `details` are what the post had before, nil for a new post.
local function log_change(tag, kind, id, text, details)
  local revision = exact(redis.call('HINCRBY', VERSION, 'revision', 1))
  redis.call('HSET', VERSION, 'tag', tag)
  local added
  local before = text and redis.call('ZADD', CHANGED, 'XX', 'INCR', 0, id)
  if before then
    redis.call('SET', REPLACED .. before, text, 'EX', 1)
    redis.call('SET', REPLACED .. before .. ':details', details, 'EX', 1)
    local entry = redis.call('XRANGE', CHANGES, before .. '-0', before .. '-0')[1]
    local fields = entry and select(2, decode_entry(entry)) or {}
    added = fields['kind'] == 'added' and before or fields['added']
  end
  append_change(revision, kind, id, tag, added)
  return revision
end

-- Returns the member of POSTS that has an id, nil if there is none.
local function find_post(id)
  return redis.call('ZRANGEBYSCORE', POSTS, id, id)[1]
end

local function text_of(member, id)
  return member:sub(#id + 2)
end

-- Returns the details of a post, "CREATED:UPDATED:AUTHOR" with empty parts where they are unknown, and the member of
-- DETAILS that has them; '' and nil if there is none.
local function find_details(id)
  local member = redis.call('ZRANGEBYSCORE', DETAILS, id, id)[1]
  return member and text_of(member, id) or '', member
end

-- Returns the author in details, '' if there is none.
local function author_of(details)
  return details:match('^%d*:%d*:(.*)$') or ''
end

-- Replaces the details of a post; '' and '::' are none.
local function set_details(id, member, details)
  if member then
    redis.call('ZREM', DETAILS, member)
  end
  if details ~= '' and details ~= '::' then
    redis.call('ZADD', DETAILS, id, id .. ':' .. details)
  end
end

-- Returns of the changes since a revision, that included, the tag, the id, the text that the post has now, '' for a
-- deleted one, and `with_details` its details; none if there are more than `most` after it.
local function find_changes(revision, since, most, with_details)
  local changes = {}
  local count = tonumber(revision) - tonumber(since)
  if count > 0 and count <= tonumber(most) then
    for position, entry in ipairs(redis.call('XRANGE', CHANGES, since .. '-0', '+')) do
      local _, fields = decode_entry(entry)
      local id = fields['id']
      local member = find_post(id)
      changes[position] = {fields['tag'] or '', id, member and text_of(member, id) or '',
        with_details and find_details(id) or ''}
    end
  end
  return changes
end

-- Returns the keys of the sets of sessions with the same claims. The fingerprint is hexadecimal: no two have one key.
local function sets_at(fingerprint, subject, sid)
  local sets = {}
  if subject and subject ~= '' then
    sets[1] = SESSIONS_AT .. fingerprint .. ':subject:' .. subject
  end
  if sid and sid ~= '' then
    sets[#sets + 1] = SESSIONS_AT .. fingerprint .. ':sid:' .. sid
  end
  return sets
end

-- Increments the counter that invalidates the caches of sessions and tokens (postd/store/redis/cached_records.py). Uses
-- and renewals are not counted.
local function note_login_change()
  redis.call('HINCRBY', VERSION, 'logins', 1)
end

local function end_session(id)
  local fields = redis.call('HMGET', SESSION .. id, 'username', 'fingerprint', 'subject', 'sid')
  redis.call('ZREM', SESSIONS, id)
  if not fields[1] then
    return 0
  end
  redis.call('DEL', SESSION .. id)
  redis.call('SREM', SESSIONS_OF .. fields[1], id)
  for _, set in ipairs(sets_at(fields[2], fields[3], fields[4])) do
    redis.call('SREM', set, id)
  end
  note_login_change()
  return 1
end

-- Returns the key under which the reservations of a key are stored, as failures.
local function reserved(key)
  return key .. ':reserved'
end

-- Returns for each key with failures or reservations that have not expired: the key, the number of failures, when the
-- first of them expires, and the number of reservations.
local function count_failures(now, keys)
  local counted = {}
  for _, key in ipairs(keys) do
    local failed = redis.call('ZCOUNT', FAILURE .. key, '(' .. now, '+inf')
    local reservations = redis.call('ZCOUNT', FAILURE .. reserved(key), '(' .. now, '+inf')
    if failed + reservations > 0 then
      local first = redis.call('ZRANGEBYSCORE', FAILURE .. key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      counted[#counted + 1] = {key, failed, first[2] or '0', reservations}
    end
  end
  return counted
end

-- Adds a failure of a key, or a reservation, under a unique id.
local function insert_failure(key, id, expires)
  redis.call('ZADD', FAILURE .. key, expires, id)
  redis.call('ZADD', FAILURES, 'LT', expires, key)
end
