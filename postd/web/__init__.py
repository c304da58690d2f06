"""HTTP.

1. Here, and nowhere else, stand headers, statuses, paths and content types.
2. A view does three things: decode, await one call, encode. It has no `try`: what goes wrong travels to `errors`.
3. Nothing here knows which store it is, or the settings; `postd.daemon.service` hands in what is needed.

`site` has the table of URLs and is the file to open first. `front` stands between the socket and the resources.
"""
