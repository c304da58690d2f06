"""The SQLite store.

`posts`, `logins` and `importing` share `database`, which has the connections, the group commit and a cache of results.
The other modules are about the file: opening and schema, locks, write-ahead log, replacement while it is open.
"""
