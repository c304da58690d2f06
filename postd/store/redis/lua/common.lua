-- Stands in front of every script, behind the names of the keys (postd/store/redis/scripts.py), which are capitals.

-- Numbers are told as text: Lua would print large ones rounded.
local function exact(number)
  return string.format('%.0f', number)
end

-- Moves the version, and tells the log what was done to which post; one that was deleted has no text.
local function changed(tag, kind, id, text)
  local revision = exact(redis.call('HINCRBY', VERSION, 'revision', 1))
  redis.call('HSET', VERSION, 'tag', tag)
  if text then
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id, 'post', text)
  else
    redis.call('XADD', CHANGES, 'MAXLEN', CHANGES_KEPT, revision .. '-0', 'kind', kind, 'id', id)
  end
  return revision
end

-- The member of POSTS that is a post, nil if there is none.
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

-- Where the reservations of a key are, which are kept as failures are.
local function reserved(key)
  return key .. ':reserved'
end

-- For each key that has failures or reservations which count now: the key, how many failures, when the first of them
-- expires, and how many reservations.
local function count_failures(now, keys)
  local counted = {}
  for _, key in ipairs(keys) do
    local failed = redis.call('ZCOUNT', FAILURE .. key, '(' .. now, '+inf')
    local under_way = redis.call('ZCOUNT', FAILURE .. reserved(key), '(' .. now, '+inf')
    if failed + under_way > 0 then
      local first = redis.call('ZRANGEBYSCORE', FAILURE .. key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      counted[#counted + 1] = {key, failed, first[2] or '0', under_way}
    end
  end
  return counted
end

-- Notes a failure of a key, or a reservation, by what tells it from others.
local function note_failure(key, id, expires)
  redis.call('ZADD', FAILURE .. key, expires, id)
  redis.call('ZADD', FAILURES, 'LT', expires, key)
end
