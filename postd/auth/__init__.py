"""Answers "who is this?" without knowing HTTP.

1. Credentials and accounts in, a name out: no header, status, cookie or path is named here.
2. What can be checked against an RFC alone is not here but in `postd.protocol`.
3. A password, a hash or an H(A1) is never logged, shown in a `repr` or put into an error.
"""
