"""How clients gain access: the portal, and the parts of each authentication scheme that face HTTP."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from twisted.web.resource import IResource

from postd.auth.checker import Checker
from postd.auth.portal import CoroutinePortal
from postd.web.guard import CredentialFactory, CredentialReader, Guard
from postd.web.openapi.operation import SchemeDescription
from postd.web.peer import PeerResolver

Views = tuple[Sequence[bytes], Any]
"""Top-level path segments, and an instance of the class of the Klein application that serves them."""


def no_views(_portal: CoroutinePortal) -> Sequence[Views]:
    """Return no views, for a scheme without pages of its own."""
    return ()


class SchemeParts(Struct, frozen=True):
    """The parts of an authentication scheme, made from settings.

    Args:
        checkers: check its credentials.
        factory: decodes its credentials, and challenges; None if they are not in `Authorization`.
        reader: finds its credentials elsewhere in a request; None if they are in `Authorization`.
        make_views: returns the views of its own pages, which may sign clients in.
    """

    checkers: Sequence[Checker]
    factory: CredentialFactory | None = None
    reader: CredentialReader | None = None
    make_views: Callable[[CoroutinePortal], Sequence[Views]] = no_views


class Access(Struct, frozen=True):
    """The schemes in force.

    Args:
        portal: signs clients in.
        schemes: by name, in the order of the challenges.
        descriptions: the words for each of them.
        clients: resolves the client's address behind proxies.
        realm: the protection realm's text.
    """

    portal: CoroutinePortal
    schemes: Mapping[str, SchemeParts]
    descriptions: Mapping[str, SchemeDescription]
    clients: PeerResolver
    realm: str

    def protect(self, resource: IResource, rule: Collection[str], users: frozenset[str] = frozenset()) -> IResource:
        """Return a resource that only clients with credentials of the schemes of a rule see; `open` needs none."""
        if "open" in rule:
            return resource
        allowed = [parts for name, parts in self.schemes.items() if name in rule]
        factories = [parts.factory for parts in allowed if parts.factory is not None]
        readers = [parts.reader for parts in allowed if parts.reader is not None]
        return Guard(self.portal, factories, resource, readers=readers, clients=self.clients, users=users)
