"""The SQLite store.

`posts`, `logins` and `importing` share `database`: a connection that reads, a cache of results, and group commits,
which `committer` makes. The other modules are about the file: opening and schema, locks, write-ahead log, replacement
while it is open.
"""
