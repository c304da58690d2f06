"""Authentication: checkers take credentials and return an `Identity`.

The package imports no HTTP (`tests/test_layers.py`). A password, a hash or an H(A1) is never logged, shown in a `repr`
or put into an error.
"""
