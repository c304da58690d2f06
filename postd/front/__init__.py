"""The HTTP front: the HTTP server between the sockets and the views.

It passes requests to a view, or to a resource of twisted.web, and sends the responses. It imports neither posts, stores
nor pages (`tests/test_layers.py`). docs/explanation/front.md has the departures from stock Twisted, and their reasons.
"""
