"""Settings of Sphinx for the documentation site; `python -m sphinx -W -b html docs build/docs` builds it."""

import sys
from pathlib import Path

import postd
from postd.auth.sign_in import Provider
from postd.protect.schemes import interface

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "postd"
author = "the postd authors"
copyright = author  # noqa: A001 - Sphinx's name
release = postd.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]
exclude_patterns = ["extensions"]
smartquotes = False  # values are in straight quotes
default_role = "py:obj"  # what a docstring writes in single backquotes

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}

html_theme = "furo"
html_title = f"postd {release.partition('+')[0]}"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# autodoc evaluates the annotations of the struct, whose module imports the class for type checkers alone.
vars(interface)["Provider"] = Provider
