"""The Redis store.

`store` puts it together: `posts`, `logins` and `importing` are what it keeps, over `engine`, which runs Lua scripts.
The other modules are about the connection: its URL, its protocol, reconnecting, and replicas.
"""
