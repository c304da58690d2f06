"""Settings: `schema` has every key with its default, `values` the types of the values, `loading` reads and checks them.

The package imports no Twisted, and opens no store and no port (`tests/test_layers.py`). An invalid setting raises
`ConfigError`: one line with the file, the key and the allowed values.
"""
