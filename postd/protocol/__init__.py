"""What RFCs define, as functions of values, bytes and `now`.

The package imports no Twisted (`tests/test_layers.py`). The docstring of a module names the sections that it
implements; its tests quote the examples of these sections.
"""
