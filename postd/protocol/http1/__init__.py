"""Strict decoding of HTTP/1.1 requests: heads, the framing of bodies, and chunks (RFC 9112).

A request has exactly one interpretation or is refused. If this server were lenient in one way and a proxy before it in
another, requests could be smuggled past the proxy (RFC 9112 §11.2). In particular a line ends with CR LF only, a field
is on one line, and a body has one length.
"""
