"""The Redis store.

`posts`, `logins` and `importing` share `database`, which runs commands and the Lua scripts of `scripts`. The other
modules are about the connection: URL, sentinels, connecting and reconnecting, confirmation by replicas.
"""
