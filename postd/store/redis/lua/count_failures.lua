-- ARGV: now, keys.
return count_failures(ARGV[1], {unpack(ARGV, 2)})
