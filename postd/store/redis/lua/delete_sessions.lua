-- ARGV: deadline, ids. Returns how many there were.
local ended = 0
for position = 2, #ARGV do
  ended = ended + end_session(ARGV[position])
end
return ended
