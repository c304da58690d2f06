-- ARGV: ids. Returns the fields of each session, in the order of postd.protocol.session.Session.
local found = {}
for position, id in ipairs(ARGV) do
  found[position] = redis.call('HMGET', SESSION .. id, 'username', 'fingerprint', 'created', 'seen', 'expires', 'ends',
    'shown_name', 'provider', 'subject', 'sid')
end
return found
