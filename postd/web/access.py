"""The schemes in force, and the protection of resources by them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from twisted.web.resource import IResource

from postd.auth.checker import Checker
from postd.auth.portal import CoroutinePortal
from postd.http.peer import PeerResolver
from postd.protect.guard import CredentialReader, FactoryMaker, Guard, ProtectedResource

Views = tuple[Sequence[bytes], Any]
"""Top-level path segments, and an instance of the class of the Klein application that serves them."""


SAMPLE_USER = "alice"
"""The user in code samples."""


class SchemeParts(Struct, frozen=True):
    """The parts of an authentication scheme, made from settings.

    Args:
        checkers: check its credentials.
        make_factories: makes its credential factories; None if its credentials are not in `Authorization`.
        reader: finds its credentials elsewhere in a request; None if they are in `Authorization`.
        make_views: returns the views of its own pages, which may sign clients in, from the portal and the resources
            that the scheme protects; None if it has none.
    """

    checkers: Sequence[Checker]
    make_factories: FactoryMaker | None = None
    reader: CredentialReader | None = None
    make_views: Callable[[CoroutinePortal, Sequence[ProtectedResource]], Sequence[Views]] | None = None


class ClientCode(Struct, frozen=True):
    """Python code that sends credentials; `{origin}` in it stands for the server's origin.

    Args:
        argument: the keyword argument of a request.
        before: the lines before the request.
        imports: the imports that these need from the standard library.
        more_imports: those from other packages.
    """

    argument: str = ""
    before: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    more_imports: tuple[str, ...] = ()


class SchemeDescription(Struct, frozen=True, eq=False):
    """The texts about an authentication scheme in the description of the API.

    Args:
        title: its name for people.
        security: its Security Scheme Object (OpenAPI 3.1.0 §4.8.27).
        curl: the words of a sample's command line that give its credentials; those of the user `SAMPLE_USER`.
        httpx: the same for a program with httpx; None for no such sample.
        treq: the same for a program with treq.
        errors: statuses and reasons of the errors that it adds to an operation.
        write_errors: those that it adds to operations that write.
        headers: the header fields that it adds to replies at times.
    """

    title: str
    security: Mapping[str, str]
    curl: str
    httpx: ClientCode | None = None
    treq: ClientCode | None = None
    errors: tuple[tuple[int, str], ...] = ()
    write_errors: tuple[tuple[int, str], ...] = ()
    headers: tuple[str, ...] = ()


class Access(Struct, frozen=True):
    """The schemes in force by name, in the order of the challenges; `descriptions` has the texts about each."""

    portal: CoroutinePortal
    schemes: Mapping[str, SchemeParts]
    descriptions: Mapping[str, SchemeDescription]
    clients: PeerResolver
    realm: str

    def protect(
        self,
        resource: IResource,
        rule: Collection[str],
        described: ProtectedResource,
        users: frozenset[str] = frozenset(),
        *,
        guard: Callable[..., Guard] = Guard,
    ) -> IResource:
        """Return a resource that requires credentials of one of a rule's schemes; `open` requires none.

        `guard` makes the guard.
        """
        if "open" in rule:
            return resource
        allowed = [parts for name, parts in self.schemes.items() if name in rule]
        makers = [parts.make_factories for parts in allowed if parts.make_factories is not None]
        return guard(
            self.portal,
            [factory for make in makers for factory in make(described)],
            resource,
            readers=[parts.reader for parts in allowed if parts.reader is not None],
            clients=described.clients,
            users=users,
        )
