-- A write that WAIT confirms together with all earlier ones. DEL comes first because it needs no memory, and allows the
-- rest.
redis.call('DEL', CONFIRMED)
redis.call('SET', CONFIRMED, '')
