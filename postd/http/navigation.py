"""Navigations: requests of a browser that opens a page (Fetch standard §2.2.5, Fetch Metadata §2.3)."""

from postd.http.interface import Request
from postd.protocol.accept import opens_page


def is_navigation(request: Request) -> bool:
    """Return whether a browser opens a page with this request.

    Browsers say so in `Sec-Fetch-Mode`. To servers without TLS they send no such field, nor did old ones: then `Accept`
    has to be that of a browser.
    """
    fields = request.fields
    mode = fields.get(b"Sec-Fetch-Mode")
    if mode is not None:
        return mode == [b"navigate"]
    if b"Sec-Fetch-Site" in fields or b"Sec-Fetch-Dest" in fields:
        return False
    accept = fields.get(b"Accept")
    return accept is not None and opens_page(b",".join(accept))
