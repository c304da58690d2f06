-- Prelude of every script, after the names of the keys, in capitals (postd/store/redis/scripts.py).

-- Numbers are returned as text: Lua would round large ones.
local function exact(number)
  return string.format('%.0f', number)
end

-- Increments the revision, and adds an entry to the log of changes, with the tag of the version that it makes; text is nil
-- for a deleted post.
local function log_change(tag, kind, id, text)
  local revision = exact(redis.call('HINCRBY', VERSION, 'revision', 1))
  redis.call('HSET', VERSION, 'tag', tag)
  if text then
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id, 'tag', tag,
      'post', text)
  else
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id, 'tag', tag)
  end
  return revision
end

-- Returns the member of POSTS that has an id, nil if there is none.
local function find_post(id)
  return redis.call('ZRANGEBYSCORE', POSTS, id, id)[1]
end

local function text_of(member, id)
  return member:sub(#id + 2)
end

local function end_session(id)
  local username = redis.call('HGET', SESSION .. id, 'username')
  redis.call('ZREM', SESSIONS, id)
  if not username then
    return 0
  end
  redis.call('DEL', SESSION .. id)
  redis.call('SREM', SESSIONS_OF .. username, id)
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
