-- ARGV: deadline, hash of the secret. Returns 1 if there was a reset, which is deleted, else 0.
return delete_reset(ARGV[2])
