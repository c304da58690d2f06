"""The authentication schemes: their names in settings, and the module of each.

A further scheme is a module with a `SCHEME` (`postd.schemes.interface.Scheme`) and a line here.
"""

SCHEMES = {
    "digest": "postd.schemes.digest",
    "bearer": "postd.schemes.bearer",
    "basic": "postd.schemes.basic",
    "session": "postd.schemes.session",
}
"""In the order of their challenges (reference: Schemes): simple clients look only at the first or the last."""
