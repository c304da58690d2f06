"""Settings: `schema` has every key with its default, `values` the types of the values, `loading` reads and checks them.

1. A value is decoded once, here, into frozen structs whose names have the units.
2. An invalid setting raises `ConfigError`, one line that names the file, the key and what is allowed.
3. Nothing here imports Twisted, opens a store or binds a port.
"""
