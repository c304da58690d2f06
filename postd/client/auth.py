"""Authentication as values: what to show to a server, and treq's client that shows it.

Departure from stock treq, whose `auth=` has Basic alone: here credentials belong to the client and to one origin.
Passwords and tokens that could be read along are sent over TLS, or to this machine, unless one asks for less.
"""

from binascii import b2a_base64
from functools import partial
from typing import Any, ClassVar, Self, cast
from urllib.parse import urlsplit

from msgspec import Struct
from treq.client import HTTPClient
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.connecting import Connections
from postd.client.digest import DigestSigner
from postd.client.form import FormSigner
from postd.client.signing import Signer, SigningAgent
from postd.client.tokens import CredentialsSigner, FileSigner, read_secret
from postd.errors import ConfigError
from postd.protocol.discovery import check_issuer, is_loopback
from postd.protocol.password import has_control
from postd.reactor import IReactor


class Site(Struct, frozen=True):
    """Where credentials are to be shown, and by what means: what a value of ours makes a signer of."""

    origin: str
    agent: IAgent
    reactor: IReactor
    ca_file: str


class _Password(Struct, frozen=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    def __post_init__(self) -> None:
        if has_control(self.user + self.password):
            raise ConfigError(type(self).__name__, "a name and a password have no control characters in them")


class Basic(_Password, frozen=True):
    """A name and a password, sent with each request (RFC 7617).

    Raises:
        ConfigError: one of them cannot be sent so: control characters, or a colon in the name.
    """

    shows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" in self.user:
            raise ConfigError("Basic", "a name has no colon in it: the password would begin there")

    def signer(self, site: Site) -> Signer:  # noqa: ARG002 - what each of them is given
        return _BasicSigner(self)


class Digest(_Password, frozen=True):
    """A name and a password that is not sent, but proven to be known, by both sides (RFC 7616, qop=auth).

    MD5 and SHA-256, the stronger one where a server offers both.

    Raises:
        ConfigError: there is a control character in one of them.
    """

    shows: ClassVar[bool] = False

    def signer(self, site: Site) -> Signer:  # noqa: ARG002 - what each of them is given
        return DigestSigner(self.user, self.password)


class FormLogin(_Password, frozen=True):
    """A name and a password for the sign-in form of postd, and the session that comes of it.

    Raises:
        ConfigError: there is a control character in one of them.
    """

    shows: ClassVar[bool] = True

    def signer(self, site: Site) -> Signer:
        return FormSigner(self.user, self.password, origin=site.origin, agent=site.agent, reactor=site.reactor)


class BearerFile(Struct, frozen=True):
    """An access token in the first line of a file, which something else keeps fresh."""

    path: str
    shows: ClassVar[bool] = True

    def signer(self, site: Site) -> Signer:  # noqa: ARG002 - what each of them is given
        return FileSigner(self.path)


class ClientCredentials(Struct, frozen=True):
    """Access tokens from an issuer, for a program with a name of its own (RFC 6749 §4.4).

    Args:
        issuer: its identifier, an https URL (http for loopback only).
        client_id: the program's name there.
        client_secret_file: a file whose first line is the password that goes with it.
        scope: what is asked for, words with spaces between them; empty for what the issuer thinks right.
        resource: whom tokens are to be for (RFC 8707); empty likewise.

    Raises:
        ConfigError: `issuer` is none.
    """

    issuer: str
    client_id: str
    client_secret_file: str
    scope: str = ""
    resource: str = ""
    shows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            check_issuer(self.issuer)
        except ValueError as error:
            raise ConfigError("issuer", str(error)) from None

    def signer(self, site: Site) -> Signer:
        return CredentialsSigner(
            self.issuer,
            self.client_id,
            partial(read_secret, self.client_secret_file, "secret"),
            scope=self.scope,
            resource=self.resource,
            reactor=site.reactor,
            ca_file=site.ca_file,
        )


Auth = Basic | Digest | FormLogin | BearerFile | ClientCredentials


class _BasicSigner(Signer):
    def __init__(self, basic: Basic) -> None:
        # Here rather than by treq, whose auth= would go wherever the caller asks.
        encoded = b2a_base64(f"{basic.user}:{basic.password}".encode(), newline=False)
        self._value = b"Basic " + encoded

    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> None:  # noqa: ARG002
        headers.setRawHeaders(b"Authorization", [self._value])


class AuthClient(HTTPClient):
    """treq's client, whose requests to one origin carry credentials: `await client.get(url)`, and all else it has.

    What treq's own functions do with it, `treq.get(url, agent=client.agent)`, carries them, too. Requests to other
    origins, by a redirect or on purpose, go without. Nothing is asked of the server before the first request. A server
    that does not prove that it knows the password, or a token that is not to be had, fails a request with
    `SignInError`; what is refused is an answer with status 401, as ever. How long a request may take is treq's
    `timeout`; a connection that brings nothing for `postd.client.connecting.SILENT_MAX_S` is ended in any case.

    Args:
        reactor: connects, and has the clock.
        url: any URL of the origin.
        auth: what to show; None for nothing.
        ca_file: PEM file of roots to trust beside the platform's; none if it is empty.
        plaintext: send passwords and tokens over plain http to other machines, too.
        repeats: whether a request without a body that got no answer on a kept connection is sent again on another.

    Raises:
        ConfigError: `url` is no URL of http or https, or what is to be shown could be read along; `ca_file` is of no
            use.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        reactor: Any,
        url: str,
        auth: Auth | None = None,
        *,
        ca_file: str = "",
        plaintext: bool = False,
        repeats: bool = True,
    ) -> None:
        self.origin = origin_of(url)
        scheme, host = urlsplit(self.origin).scheme, urlsplit(self.origin).hostname or ""
        if auth is not None and auth.shows and scheme != "https" and not is_loopback(host) and not plaintext:
            raise ConfigError(
                self.origin, f"{type(auth).__name__} would be sent in plain text; give an https URL, or use Digest"
            )
        reactor = cast("IReactor", reactor)
        self._connections = Connections(reactor, ca_file=ca_file, repeats=repeats)
        self._signer: Signer | None = None
        self.agent: IAgent = self._connections.agent
        if auth is not None:
            self._signer = auth.signer(Site(self.origin, self.agent, reactor, ca_file))
            self.agent = SigningAgent(self.agent, self.origin, self._signer, reactor=reactor)
        super().__init__(self.agent)

    async def close(self) -> None:
        """Sign out where one has signed in, and end all connections."""
        try:
            if self._signer is not None:
                await self._signer.close()
        finally:
            await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host, and port unless it is the scheme's own.

    Raises:
        ConfigError: it has none that could be asked.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    plain = url.isascii() and url.isprintable() and " " not in url
    if not plain or not host or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise ConfigError(repr(url), "this is no URL such as https://posts.example or http://127.0.0.1:8080")
    if "[" in parts.netloc:
        raise ConfigError(repr(url), "this has an IPv6 address, and treq cannot ask one: give it a name")
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
