-- Check that the server permits all commands and keys that postd uses. Run on each new connection, before other scripts.
--
-- ARGV: all keys. Returns pairs of a command, or a key, and its error. Each command has a form that changes nothing in any
-- database; for some that is an invalid one, with an error even if it is permitted. (Redis 6.2 has no
-- redis.acl_check_cmd.)
local none = IMPORT -- a prefix only: this key does not exist
local errors = {}

local function try(name, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer['err'] then
    errors[#errors + 1] = {name, answer['err']}
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
-- These would create a key that does not exist; on HISTORY, a string, they fail.
if type(try('GET', 'GET', HISTORY)) == 'string' then
  try('INCR', 'INCR', HISTORY)
  try('SADD', 'SADD', HISTORY, '')
end
for _, key in ipairs(ARGV) do
  try(key, 'PERSIST', key)
end
return errors
