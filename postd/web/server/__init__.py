"""The HTTP server (the front), between the sockets and the Klein resource tree.

1. It departs from stock Twisted only where the specification requires it; each departure has its reason.
2. It does not depend on posts or stores: it passes requests to the tree and sends the responses.
"""
