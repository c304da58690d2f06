"""The authentication schemes: their names in settings and in `postd.protect`, and the class of each.

A further scheme of the server is a subclass of `postd.protect.schemes.interface.Scheme`, and a line here.
"""

from typing import Literal

SchemeName = Literal["digest", "bearer", "basic", "session", "token"]
"""The names that `postd.protect` takes; a scheme of an application's own is passed as a value."""

SCHEMES = {
    "digest": "postd.protect.schemes.digest:Digest",
    "bearer": "postd.protect.schemes.bearer:Bearer",
    "basic": "postd.protect.schemes.basic:Basic",
    "session": "postd.protect.schemes.form:Form",
    "token": "postd.protect.schemes.token:Token",
}
"""In the order of their challenges (reference: Schemes): simple clients look only at the first or the last. The
challenge of "token" is that of "bearer", or in its place."""
