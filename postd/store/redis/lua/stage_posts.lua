-- ARGV: limit, the name of the import, how long it is kept in seconds, then an id and a text for each post. Returns the
-- id of the first post that was staged before, else ''.
local staged = IMPORT .. ARGV[2]
for position = 4, #ARGV, 2 do
  local id = ARGV[position]
  if redis.call('ZCOUNT', staged, id, id) > 0 then
    return id
  end
  redis.call('ZADD', staged, id, id .. ':' .. ARGV[position + 1])
end
redis.call('EXPIRE', staged, ARGV[3])
return ''
