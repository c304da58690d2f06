"""The login store in memory, for one process: plain Python objects, which end with it. It stores no posts.

`logins` has the module of that name in `sqlite/` and `redis/` as its twin. The store `memory:` of a server, which has
posts as well, is in `postd.store.sqlite.store`.
"""
