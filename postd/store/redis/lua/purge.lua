-- ARGV: deadline, now, the times until which nonces, proofs and tokens must have expired to be removed, how long CLOCK may
-- be behind, how many of each kind to remove at most. Returns whether there may be more (1 or 0), and what CLOCK has
-- reached.
redis.call('DEL', OLD_CHANGES) -- that of a node of an older version, which may still run
local most = tonumber(ARGV[7])
local more, removed, last_proof = 0, false, 0
local function expired(index, now)
  local found = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, most)
  if #found == most then
    more = 1
  end
  removed = removed or #found > 0
  return found
end

for _, id in ipairs(expired(SESSIONS, ARGV[2])) do
  end_session(id)
end
for _, nonce in ipairs(expired(NONCES, ARGV[3])) do
  redis.call('DEL', NONCE .. nonce)
  redis.call('ZREM', NONCES, nonce)
end
local proofs = expired(PROOFS, ARGV[4])
if #proofs > 0 then
  last_proof = redis.call('ZRANGE', PROOFS, #proofs - 1, #proofs - 1, 'WITHSCORES')[2]
end
for _, proof in ipairs(proofs) do
  redis.call('DEL', NONCE .. proof)
  redis.call('ZREM', PROOFS, proof)
end
for _, key in ipairs(expired(IDEMPOTENCY_KEYS, ARGV[2])) do
  redis.call('DEL', IDEMPOTENCY_KEY .. key)
  redis.call('ZREM', IDEMPOTENCY_KEYS, key)
end
for _, key in ipairs(expired(FAILURES, ARGV[2])) do
  redis.call('ZREMRANGEBYSCORE', FAILURE .. key, '-inf', ARGV[2])
  local first = redis.call('ZRANGE', FAILURE .. key, 0, 0, 'WITHSCORES')
  if first[2] then
    redis.call('ZADD', FAILURES, first[2], key)
  else
    redis.call('ZREM', FAILURES, key)
  end
end
for _, token in ipairs(expired(TOKENS, ARGV[5])) do
  delete_credential(KINDS.token, token)
end
for _, reset in ipairs(expired(RESETS, ARGV[2])) do
  delete_reset(reset)
end

-- Last: where the server has no memory left, a script must remove something before it may write.
local function advance(field, moment)
  local reached = redis.call('HGET', CLOCK, field) or '0'
  if tonumber(moment) > tonumber(reached) then
    redis.call('HSET', CLOCK, field, moment)
    return moment
  end
  return reached
end

local reached = redis.call('HGET', CLOCK, 'reached') or '0'
local behind = tonumber(reached) <= tonumber(ARGV[2]) - tonumber(ARGV[6])
local function expires() -- tokens may never do
  return redis.call('EXISTS', SESSIONS, NONCES, PROOFS, IDEMPOTENCY_KEYS, FAILURES, RESETS) > 0
    or redis.call('ZCOUNT', TOKENS, '-inf', '(inf') > 0
end
if removed or (behind and expires()) then
  reached = advance('reached', ARGV[2])
  advance('nonces', ARGV[3])
  advance('proofs', last_proof)
end
return {more, reached}
