"""Stores: posts, and the persistent state of authentication.

1. A store does not know HTTP: values in, values out, and the errors of `postd.errors`.
2. `interface` defines the methods of a store and their errors; `tests/store/contract.py` tests them for each store.
3. `sqlite/` and `redis/` are twins: modules of the same name have the same task. In each, `posts`, `logins` and
   `importing` share a `database`; a `store` inherits from the first two, and `opening` picks a store by its URL.
4. `memory/` has `logins` alone, for programs of one process that need no posts.
"""
