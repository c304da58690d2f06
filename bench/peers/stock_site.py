"""The list, for users only, on a stock `twisted.web.server.Site` with its access log: `stock_site.py KIND PORT`.

KIND is `wrapper`, Twisted's `HTTPAuthSessionWrapper`; `protect`, `Protection` with the same checker of
`twisted.cred`; or `file`, `Protection` with the user file.
"""

import sys
from pathlib import Path
from typing import Any

from twisted.cred.checkers import FilePasswordDB
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.web.guard import BasicCredentialFactory, HTTPAuthSessionWrapper
from twisted.web.resource import IResource, Resource
from twisted.web.server import Site
from twisted.web.static import Data
from zope.interface import implementer

from postd.protect import Protection

REALM = "postd"


@implementer(IRealm)
class OneResource:
    def __init__(self, resource: IResource) -> None:
        self._resource = resource

    def requestAvatar(self, avatarId: object, mind: object, *interfaces: object) -> Any:  # noqa: ARG002 - IRealm's
        return IResource, self._resource, lambda: None


async def serve(reactor: Any, shown: IResource, kind: str, port: str) -> None:
    checker = FilePasswordDB("users.plain", cache=True)
    async with Protection(reactor, realm=REALM, users="users" if kind == "file" else checker) as protection:
        guarded = protection.protect(shown, "basic")
        if kind == "wrapper":
            guarded = HTTPAuthSessionWrapper(Portal(OneResource(shown), [checker]), [BasicCredentialFactory(REALM)])
        root = Resource()
        root.putChild(b"post", guarded)
        reactor.listenTCP(int(port), Site(root, logPath="access.log"), interface="127.0.0.1")
        await Deferred()


if __name__ == "__main__":
    react(serve, [Data(Path("list.json").read_bytes(), "application/json"), *sys.argv[1:]])
