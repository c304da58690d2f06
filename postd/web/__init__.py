"""HTTP.

1. Headers, statuses, paths and media types are in this package only.
2. A view decodes, awaits one call and encodes. It has no `try`: `errors` turns exceptions into responses.
3. This package depends neither on the settings nor on the kind of store; `postd.daemon.service` passes in values.

Start reading at `routes`, the table of URLs. `postd.front` is the HTTP server, which this package does not import.
"""
