-- ARGV: after, how many; to have the changes as well, the revision of the first entry of the log, and how many may follow
-- that. Returns the revision, the tag, the posts, and of these entries the tag, the id, and the text that the post has now,
-- '' for a deleted one; no entries if more would follow.
local version = redis.call('HMGET', VERSION, 'revision', 'tag')
local changes = {}
if ARGV[3] and version[1] then
  local count = tonumber(version[1]) - tonumber(ARGV[3])
  if count > 0 and count <= tonumber(ARGV[4]) then
    for position, entry in ipairs(redis.call('XRANGE', CHANGES, ARGV[3] .. '-0', '+')) do
      local _, fields = decode_entry(entry)
      local member = find_post(fields['id'])
      changes[position] = {fields['tag'] or '', fields['id'], member and text_of(member, fields['id']) or ''}
    end
  end
end
return {version[1], version[2], redis.call('ZRANGEBYSCORE', POSTS, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2]), changes}
