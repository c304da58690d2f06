"""A limit on the nesting depth of JSON texts.

The limit of the standard library's decoder depends on the version of Python: about 1,000 levels in 3.11, the size of
the thread's stack since 3.14. This limit is the same for all versions.
"""

import re

DEPTH_MAX = 500
"""The deepest nesting; every supported version of Python can decode it."""

# An unterminated string extends to the end of the text: otherwise the search would restart at each quote in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?', re.DOTALL)
_BRACKETS = re.compile(r"([\[{]++)|([\]}]++)")


def is_too_deep(text: str) -> bool:
    """Return whether the arrays and objects of a JSON text are nested more than `DEPTH_MAX` levels deep."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    depth = 0
    for opening, closing in _BRACKETS.findall(_STRING.sub("", text)):
        depth += len(opening) - len(closing)
        if depth > DEPTH_MAX:
            return True
    return False
