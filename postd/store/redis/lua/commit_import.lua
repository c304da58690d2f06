-- ARGV: deadline, tag, the name of the import, the number of its posts, '1' to skip posts whose ids exist, '1' to refuse
-- a store with posts, the minimum of the last id, the minimum of the revision before the first change, how many posts have
-- details; perhaps the id and the beginning of the collection. Returns 'lost', 'not empty', 'taken' with an id, or 'done'
-- with the number of posts.
local staged = IMPORT .. ARGV[3]
local details = staged .. ':details'
if redis.call('ZCARD', staged) ~= tonumber(ARGV[4]) or redis.call('ZCARD', details) ~= tonumber(ARGV[9]) then
  return {'lost', '0'}
end
local empty = redis.call('EXISTS', POSTS) == 0
if ARGV[6] == '1' and not empty then
  return {'not empty', '0'}
end

local function id_of(member)
  return member:match('^(%d+):')
end

-- Returns a thousand members of a set, from a rank on.
local function portion(key, rank)
  return redis.call('ZRANGE', key, rank, rank + 999)
end

-- Makes a staged set a part of another one.
local function move(key, target)
  if redis.call('EXISTS', key) == 0 then
    return
  end
  if empty then
    redis.call('RENAME', key, target)
    redis.call('PERSIST', target)
    return
  end
  -- ZUNIONSTORE would copy all members: some seconds for a million, to add one.
  for rank = 0, redis.call('ZCARD', key) - 1, 1000 do
    local added = {}
    for _, member in ipairs(portion(key, rank)) do
      added[#added + 1] = id_of(member)
      added[#added + 1] = member
    end
    redis.call('ZADD', target, unpack(added))
  end
  redis.call('DEL', key)
end

if not empty then
  local rank = 0
  local members = portion(staged, rank)
  while #members > 0 do
    for _, member in ipairs(members) do
      if not find_post(id_of(member)) then
        rank = rank + 1
      elseif ARGV[5] == '1' then
        redis.call('ZREM', staged, member)
        redis.call('ZREMRANGEBYSCORE', details, id_of(member), id_of(member))
      else
        return {'taken', id_of(member)}
      end
    end
    members = portion(staged, rank)
  end
end

-- Each post is a change; the log keeps the last ones.
local count = redis.call('ZCARD', staged)
local before = tonumber(redis.call('HGET', VERSION, 'revision'))
local revision = math.max(before, tonumber(ARGV[8]))
if revision + count > before then
  redis.call('HSET', VERSION, 'revision', exact(revision + count), 'tag', ARGV[2])
end
local logged = redis.call('ZRANGE', staged, -tonumber(CHANGES_KEPT), -1)
for position, member in ipairs(logged) do
  append_change(exact(revision + count - #logged + position), 'added', id_of(member), ARGV[2])
end
local last_id = math.max(tonumber(redis.call('GET', LAST_ID)), tonumber(ARGV[7]))
if count > 0 then
  last_id = math.max(last_id, tonumber(id_of(logged[#logged])))
  -- Those of deleted posts, which a node of an older version has left.
  for rank = 0, count - 1, 1000 do
    for _, member in ipairs(portion(staged, rank)) do
      redis.call('ZREMRANGEBYSCORE', DETAILS, id_of(member), id_of(member))
    end
  end
  move(staged, POSTS)
  move(details, DETAILS)
end
redis.call('SET', LAST_ID, exact(last_id))
if ARGV[10] then
  redis.call('HSET', COLLECTION, 'id', ARGV[10], 'began', ARGV[11])
end
return {'done', exact(count)}
