"""Authentication, independent of HTTP.

1. Checkers take credentials and return a name; no header, status, cookie or path is named here.
2. Code that can be checked against an RFC alone is in `postd.protocol`.
3. A password, a hash or an H(A1) is never logged, shown in a `repr` or put into an error.
"""
