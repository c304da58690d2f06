"""The login store in memory, for one process: plain Python objects, which end with it. It stores no posts.

`logins` and `credentials` have the modules of these names in `sqlite/` and `redis/` as their twins. The store `memory:`
of a server, which has posts as well, is in `postd.store.sqlite.store`.
"""
