"""Network: endpoint strings, listening ports, TLS, the PROXY protocol, and HTTP clients.

The package imports neither posts, users nor settings. Settings import `endpoint_strings`, which imports no Twisted
(`tests/test_layers.py`).
"""
