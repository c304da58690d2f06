"""The SQLite store.

`store` puts it together: `posts`, `logins` and `importing` are what it keeps, over `engine`, which has the connections,
the writer thread and the group commit. The other modules are about the file: schema, locks, write-ahead log.
"""
