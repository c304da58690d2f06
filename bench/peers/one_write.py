"""The baseline for postd's streamed list: the same SQLite file, encoded as a whole and sent in one write.

Usage: one_write.py PORT FILE
"""

import json
import sqlite3
import sys

from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from twisted.web.server import Site


class Posts(Resource):
    def __init__(self, file: str) -> None:
        super().__init__()
        self._connection = sqlite3.connect(file)

    def render_GET(self, request: IRequest) -> bytes:
        rows = self._connection.execute("SELECT id, post FROM post ORDER BY id")
        posts = [{"id": post_id, "post": text} for post_id, text in rows]
        request.setHeader(b"Content-Type", b"application/json")
        return json.dumps(posts, indent=2).encode()


def main() -> None:
    port, file = sys.argv[1:]
    root = Resource()
    root.putChild(b"post", Posts(file))
    serverFromString(reactor, f"tcp:{port}:interface=127.0.0.1").listen(Site(root))
    reactor.run()


if __name__ == "__main__":
    main()
