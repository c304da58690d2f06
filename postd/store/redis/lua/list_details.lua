-- ARGV: 'first' or 'last', the id after or before which they are, how many; and as for list_posts. Returns the revision,
-- the tag, the posts in this direction, members of DETAILS in the range of their ids, and the changes.
local version = redis.call('HMGET', VERSION, 'revision', 'tag')
local posts
if ARGV[1] == 'first' then
  posts = redis.call('ZRANGEBYSCORE', POSTS, '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
else
  posts = redis.call('ZRANGE', POSTS, '(' .. ARGV[2], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[3])
end
local details = {}
if #posts > 0 then
  local first, last = posts[1]:match('^%d+'), posts[#posts]:match('^%d+')
  if ARGV[1] == 'last' then
    first, last = last, first
  end
  details = redis.call('ZRANGEBYSCORE', DETAILS, first, last)
end
local changes = ARGV[4] and version[1] and find_changes(version[1], ARGV[4], ARGV[5], true) or {}
return {version[1], version[2], posts, details, changes}
