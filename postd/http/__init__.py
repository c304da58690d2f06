"""HTTP as values: requests, responses, errors, and views, coroutines that run as resources of twisted.web.

Nothing here depends on postd's own pages, its API or its connections; `postd.protect` and `postd.web` build on it.
"""
