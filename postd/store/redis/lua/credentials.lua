-- Prelude of the scripts of personal access tokens, passkeys and resets of passwords.

local KINDS = {
  token = {record = TOKEN, of_id = TOKEN_OF_ID, of_account = TOKENS_OF, all = TOKENS},
  passkey = {record = PASSKEY, of_id = PASSKEY_OF_ID, of_account = PASSKEYS_OF, all = PASSKEYS},
}

-- Deletes a token or a passkey; returns how many there were.
local function delete_credential(kind, key)
  local fields = redis.call('HMGET', kind.record .. key, 'id', 'account')
  redis.call('ZREM', kind.all, key)
  if not fields[1] then
    return 0
  end
  redis.call('DEL', kind.record .. key, kind.of_id .. fields[1])
  redis.call('SREM', kind.of_account .. fields[2], key)
  note_login_change()
  return 1
end

-- Deletes a reset by the hash of its secret; returns how many there were.
local function delete_reset(hash)
  local account = redis.call('HGET', RESET .. hash, 'account')
  redis.call('ZREM', RESETS, hash)
  if not account then
    return 0
  end
  redis.call('DEL', RESET .. hash, RESET_OF .. account)
  return 1
end
