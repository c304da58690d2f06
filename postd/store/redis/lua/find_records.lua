-- ARGV: the prefix of the keys of some hashes, how many fields to return of each, their names, the rest of each key.
-- Returns the values of each hash.
local fields = {}
for position = 1, ARGV[2] do
  fields[position] = ARGV[2 + position]
end
local found = {}
for position = 3 + #fields, #ARGV do
  found[#found + 1] = redis.call('HMGET', ARGV[1] .. ARGV[position], unpack(fields))
end
return found
