"""HTTP as values: requests, responses, errors, and the driver between coroutines and resources of twisted.web.

Nothing here knows postd's own pages, its API or its connections; `postd.protect` and `postd.web` are built on it.
"""
