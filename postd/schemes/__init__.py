"""Authentication schemes: a module for each, whose `SCHEME` implements the interface for the rest of postd.

1. A scheme's own settings, credentials, challenges, checker, pages, checks and words for the API's description are
   found through its `SCHEME`. Outside of this package a scheme is named only where the settings file has its table
   (`postd.settings`), and by the routes that need a session (`postd.web.routes`).
2. The arithmetic of a scheme is in `postd.protocol`, its checker in `postd.auth`, its HTTP in `postd.web`; the modules
   here put them together.
3. `postd.scheme_names` lists the schemes, and is all that settings import: a module is imported when it is needed.
   Code that a scheme needs only with certain settings is in a module of its own, such as `issuers`.
"""

from importlib import import_module
from typing import Any

from postd.errors import ConfigError
from postd.scheme_names import SCHEMES
from postd.schemes.interface import Scheme
from postd.settings.loading import LoadedSettings, decode_table
from postd.settings.schema import Settings


def load_schemes() -> dict[str, Scheme]:
    """Return all schemes by their names, in the order of their challenges."""
    return {name: import_module(module).SCHEME for name, module in SCHEMES.items()}


def load_options(loaded: LoadedSettings) -> dict[str, Any]:
    """Return the own tables of schemes in the settings file, decoded, by the names of the schemes.

    A scheme with such a table has one here if it has one in the file, or if an access rule names the scheme.

    Raises:
        ConfigError: a table cannot be used, or is one of a scheme without a table.
    """
    options = {}
    for name, scheme in load_schemes().items():
        if name in Settings.__struct_encode_fields__:
            continue
        where = loaded.where.get(name, name)
        if scheme.options is None and name in loaded.values:
            raise ConfigError(where, "unknown key; this scheme has no table")
        if scheme.options is not None and (name in loaded.values or loaded.settings.uses_scheme(name)):
            options[name] = decode_table(loaded.values.get(name, {}), scheme.options, where)
    return options
