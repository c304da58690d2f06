-- ARGV: deadline, tag, id, and as for replace_post: the expected text, '1' if the author must be the expected one, the
-- expected author. Returns 'missing', 'not author', 'changed' or 'done'.
local id = ARGV[3]
local member = find_post(id)
if not member then
  return 'missing'
end
local text = text_of(member, id)
local details, details_member = find_details(id)
if ARGV[5] == '1' and (ARGV[6] == '' or ARGV[6] ~= author_of(details)) then
  return 'not author'
end
if ARGV[4] ~= '' and ARGV[4] ~= text then
  return 'changed'
end
redis.call('ZREM', POSTS, member)
set_details(id, details_member, '')
log_change(ARGV[2], 'deleted', id, text, details)
return 'done'
