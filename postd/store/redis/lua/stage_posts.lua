-- ARGV: deadline, the name of the import, its expiry in seconds, then an id and a text for each post. Returns the id of
-- the first post that is staged already, else ''.
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
