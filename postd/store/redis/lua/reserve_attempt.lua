-- ARGV: deadline, now, expiry, id, keys, then for each key the limit of its failures and reservations. Returns false if
-- the reservation was made, else the counts.
local many = (#ARGV - 4) / 2
local keys = {unpack(ARGV, 5, 4 + many)}
local allowed = {}
for position, key in ipairs(keys) do
  allowed[key] = tonumber(ARGV[4 + many + position])
end
local counted = count_failures(ARGV[2], keys)
for _, found in ipairs(counted) do
  if found[2] + found[4] >= allowed[found[1]] then
    return counted
  end
end
for _, key in ipairs(keys) do
  insert_failure(reserved(key), ARGV[4], ARGV[3])
end
return false
