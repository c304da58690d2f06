"""HTTP as values: requests, responses, errors, and the driver between coroutines and resources of any twisted.web server.

Nothing here knows postd's own pages, its API or its connections; `postd.protect` and `postd.web` are built on it.
"""
