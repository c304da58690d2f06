"""The HTTP front: what stands between the socket and the Klein resource tree.

1. It departs from stock Twisted only where the specification asks for it; each departure names its reason.
2. It knows no post and no store: requests in, answers of the tree out.
"""
