-- Whether the server allows what postd does. Run on each new connection, first of all scripts.
--
-- ARGV: all keys. Returns pairs of a command, or a key, and the error that it met. Each command has a form that changes
-- nothing in any database; for some that is a wrong one, so they meet an error although they are allowed. (Redis 6.2 has
-- no redis.acl_check_cmd.)
local none = IMPORT -- a name follows it: this key does not exist
local met = {}

local function try(name, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer['err'] then
    met[#met + 1] = {name, answer['err']}
  end
  return answer
end

local commands = {
  {'DEL', none}, {'EXISTS', none}, {'EXPIRE', none, 1}, {'HGET', none, ''}, {'HINCRBY', none, '', 'no number'},
  {'HMGET', none, ''}, {'HSET', none, '', '', 'no value'}, {'PERSIST', none}, {'PING'}, {'RENAME', none, none},
  {'SET', none, '', 'XX'}, {'SMEMBERS', none}, {'SREM', none, ''}, {'TIME'}, {'TYPE', none},
  {'XADD', none, 'NOMKSTREAM', '*', '', ''}, {'XRANGE', none, '-', '+'}, {'ZADD', none, 'XX', 0, ''}, {'ZCARD', none},
  {'ZCOUNT', none, 0, 0}, {'ZRANGE', none, 0, 0}, {'ZRANGEBYSCORE', none, 0, 0}, {'ZREM', none, ''},
  {'ZREMRANGEBYSCORE', none, 0, 0},
}
for _, command in ipairs(commands) do
  try(command[1], unpack(command))
end
-- These would make a key that does not exist; of a history, a text, they make nothing.
if type(try('GET', 'GET', HISTORY)) == 'string' then
  try('INCR', 'INCR', HISTORY)
  try('SADD', 'SADD', HISTORY, '')
end
for _, key in ipairs(ARGV) do
  try(key, 'PERSIST', key)
end
return met
