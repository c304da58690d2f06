"""Network: endpoint strings, listening ports, TLS, the PROXY protocol, and an HTTPS client for issuers' documents.

1. Nothing here depends on posts, users or settings.
2. `endpoint_strings` imports no Twisted: settings use it.
"""
