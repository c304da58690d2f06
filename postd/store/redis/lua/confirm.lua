-- A write for WAIT to wait for, after all others. Taking the key away first needs no memory, and allows the rest.
redis.call('DEL', CONFIRMED)
redis.call('SET', CONFIRMED, '')
