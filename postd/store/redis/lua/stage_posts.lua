-- ARGV: deadline, the name of the import, its expiry in seconds, then an id, a text and the details of each post.
-- Returns the id of the first post that is staged already, else ''.
local staged = IMPORT .. ARGV[2]
local details = staged .. ':details'
for position = 4, #ARGV, 3 do
  local id = ARGV[position]
  if redis.call('ZCOUNT', staged, id, id) > 0 then
    return id
  end
  redis.call('ZADD', staged, id, id .. ':' .. ARGV[position + 1])
  if ARGV[position + 2] ~= '' then
    redis.call('ZADD', details, id, id .. ':' .. ARGV[position + 2])
  end
end
redis.call('EXPIRE', staged, ARGV[3])
redis.call('EXPIRE', details, ARGV[3])
return ''
