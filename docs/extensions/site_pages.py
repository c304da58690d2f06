"""A Sphinx extension: generated parts of reference pages, and a check that pages load nothing from other hosts.

The lines from `<!-- generated: NAME -->` to `<!-- end -->` in a page, which are for readers of the file, are replaced
by Markdown that `reference_parts` makes from the code. A link to a Markdown file outside of docs/ becomes a download,
as MyST does it for links to other files.
"""

import re
from pathlib import Path

import foreign_resources
import reference_parts
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_LONG_TYPE = re.compile(r"(?:<InterfaceClass |<function |~)(?:\w+\.)*(\w+)>?")
_LINK_UP = re.compile(r"(?<=\]\()(\.\./[^)#\s]+\.md)(?:#[^)\s]*)?(?=\))")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension (Sphinx's entry point)."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-signature", _shorten_types)
    app.connect("build-finished", _refuse_foreign_resources)
    return {"parallel_read_safe": True}


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    folder = Path(app.env.doc2path(page)).parent
    root = Path(app.srcdir)

    def as_download(link: re.Match[str]) -> str:
        outside = not (folder / link[1]).resolve().is_relative_to(root)
        return f"path:{link[1]}" if outside else link[0]

    text = _MARK.sub(lambda mark: reference_parts.PARTS[mark[1]](), source[0])
    source[0] = _LINK_UP.sub(as_download, text)


def _shorten_types(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Shorten the names of types that Sphinx leaves long: interfaces, and those of arguments with a default."""
    return arguments and _LONG_TYPE.sub(r"\1", arguments), result and _LONG_TYPE.sub(r"\1", result)


def _refuse_foreign_resources(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        found = list(foreign_resources.find(Path(app.outdir)))
        if found:
            raise ExtensionError("pages load from other hosts: " + "; ".join(found))
