"""A bound on how deep a JSON text is nested.

How deep the standard library's decoder goes depends on the version of Python: some 1,000 levels in 3.11, as many as the
stack of the thread has room for since 3.14. What is accepted must not depend on it.
"""

import re

DEPTH_MAX = 500
"""Levels; the decoder of each version of Python has room for as many."""

# A string without an end is taken to the end of the text: a search for the next one would start at each quote in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?', re.DOTALL)
_BRACKETS = re.compile(r"([\[{]++)|([\]}]++)")


def is_too_deep(text: str) -> bool:
    """Tell whether the arrays and objects of a JSON text are nested more than `DEPTH_MAX` levels deep."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    depth = 0
    for opening, closing in _BRACKETS.findall(_STRING.sub("", text)):
        depth += len(opening) - len(closing)
        if depth > DEPTH_MAX:
            return True
    return False
