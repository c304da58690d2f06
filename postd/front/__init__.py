"""The HTTP front: the HTTP server between the sockets and the views.

1. It departs from stock Twisted only where the specification requires it; each departure has its reason.
2. It does not depend on posts, stores or pages: it passes requests to a view, or to a resource of twisted.web, and
   sends the responses.
"""
