"""The URLs of postd: posts, the board, documentation, metadata.

Start reading at `routes`, the table of URLs. The package imports neither the settings, a store nor the HTTP server
(`tests/test_layers.py`): it uses the interfaces of `postd.store.interface`, and `postd.daemon.server` passes in values.
"""
