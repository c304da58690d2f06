"""Stores: posts, and the persistent state of authentication.

`interface` defines the methods of a store and their errors; `tests/store/contract.py` tests each store against it. The
packages `sqlite` and `redis` are twins: modules of the same name have the same task. `memory` has `logins` alone, for
programs of one process that need no posts. The package imports no HTTP and no settings (`tests/test_layers.py`).
"""
