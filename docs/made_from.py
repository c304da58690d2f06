"""The files that the pictures of pages were made from; `python -m docs.pictures` writes down their hashes."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
MADE_FROM = PICTURES / "made-from.txt"
"""The hashes as they were when the pictures were made, in the format of `sha256sum`."""


def list_hashes() -> str:
    """Return the text of `MADE_FROM` for the templates, style sheets and scripts of pages as they are now."""
    sources = sorted(path for path in (ROOT / "postd").rglob("*") if path.suffix in {".html", ".css", ".js"})
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT).as_posix()}\n" for path in sources
    )
