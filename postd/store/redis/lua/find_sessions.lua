-- ARGV: ids. Returns the fields of each session, in the order of postd.model.Session.
local found = {}
for position, id in ipairs(ARGV) do
  found[position] = redis.call('HMGET', SESSION .. id, 'username', 'fingerprint', 'created', 'seen', 'expires', 'ends')
end
return found
