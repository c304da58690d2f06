"""Stores: posts, and the state that authentication must remember.

1. A store knows no HTTP and no client: values in, values out, and the errors of `postd.errors`.
2. `interface` says what a store does and when each call fails; `tests/store/contract.py` holds each store to it.
3. `sqlite/` and `redis/` are twins: modules of the same name have the same task. `opening` picks one by its URL.
"""
