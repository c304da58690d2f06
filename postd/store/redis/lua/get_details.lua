-- ARGV: id. Returns the member of POSTS and the details; '' and '' if there is no such post.
local member = find_post(ARGV[1])
return {member or '', member and find_details(ARGV[1]) or ''}
