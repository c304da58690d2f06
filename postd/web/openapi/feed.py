"""Description of `postd.web.feed`."""

from postd.web.openapi.components import CONDITIONS, NOT_MODIFIED, UNAVAILABLE, Body, Operation, Reply

_EXAMPLE = """\
<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
<id>urn:uuid:5d0c4b6e-6f0a-4c0f-9a51-2f6a5f1f7e10</id>
...
</feed>
"""

OPERATIONS = {
    "GET /feed.atom": Operation(
        "showFeed",
        "Show the newest posts as a feed",
        "An Atom feed (RFC 4287) for feed readers, with the 50 newest posts.",
        {
            200: Reply("The feed.", Body(str, _EXAMPLE, "application/atom+xml; charset=utf-8"), ("ETag",), ("Link",)),
            304: NOT_MODIFIED,
        },
        {412: "`If-Match` does not hold.", 503: UNAVAILABLE},
        "read",
        CONDITIONS,
    )
}
