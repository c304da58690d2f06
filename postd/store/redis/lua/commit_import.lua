-- ARGV: deadline, tag, the name of the import, the number of its posts, '1' to skip posts whose ids exist, '1' to refuse
-- a store with posts, the minimum of the last id, the minimum of the revision before the first change. Returns 'lost',
-- 'not empty', 'taken' with an id, or 'done' with the number of posts.
local staged = IMPORT .. ARGV[3]
if redis.call('ZCARD', staged) ~= tonumber(ARGV[4]) then
  return {'lost', '0'}
end
local empty = redis.call('EXISTS', POSTS) == 0
if ARGV[6] == '1' and not empty then
  return {'not empty', '0'}
end

local function id_of(member)
  return member:match('^(%d+):')
end

-- Returns a thousand members of `staged`, from a rank on.
local function portion(rank)
  return redis.call('ZRANGE', staged, rank, rank + 999)
end

if not empty then
  local rank = 0
  local members = portion(rank)
  while #members > 0 do
    for _, member in ipairs(members) do
      if not find_post(id_of(member)) then
        rank = rank + 1
      elseif ARGV[5] == '1' then
        redis.call('ZREM', staged, member)
      else
        return {'taken', id_of(member)}
      end
    end
    members = portion(rank)
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
  if empty then
    redis.call('RENAME', staged, POSTS)
    redis.call('PERSIST', POSTS)
  else
    -- ZUNIONSTORE would copy all posts: some seconds for a million, to add one.
    for rank = 0, count - 1, 1000 do
      local added = {}
      for _, member in ipairs(portion(rank)) do
        added[#added + 1] = id_of(member)
        added[#added + 1] = member
      end
      redis.call('ZADD', POSTS, unpack(added))
    end
    redis.call('DEL', staged)
  end
end
redis.call('SET', LAST_ID, exact(last_id))
return {'done', exact(count)}
