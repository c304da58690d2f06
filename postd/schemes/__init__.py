"""Authentication schemes: each module has one `SCHEME`, with all that the rest of postd asks of a scheme.

1. A scheme's settings, credentials, challenges, checker, pages, checks and words for the API's description are found
   through its `SCHEME`; nothing outside of this package names a scheme.
2. The arithmetic of a scheme is in `postd.protocol`, its checker in `postd.auth`, its HTTP in `postd.web`; the modules
   here put them together.
3. `postd.scheme_names` lists the schemes, and is all that settings import: a module is imported when it is needed.
"""

from importlib import import_module

from postd.scheme_names import SCHEMES
from postd.schemes.interface import Scheme


def load_schemes() -> dict[str, Scheme]:
    """Return all schemes by their names, in the order of their challenges."""
    return {name: import_module(module).SCHEME for name, module in SCHEMES.items()}
