"""Credentials as values, and `AuthClient`, treq's client that sends them.

Departure from stock treq, whose `auth=` supports Basic alone: credentials belong to the client and to one origin.
Passwords and tokens are sent only over TLS or to loopback, unless the caller allows plain text.
"""

from binascii import b2a_base64
from functools import partial
from typing import Any, ClassVar, Self, cast
from urllib.parse import urlsplit

from msgspec import Struct
from treq.client import HTTPClient
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.authenticator import AuthAgent, Authenticator
from postd.client.connection_pool import ConnectionPool
from postd.client.digest import DigestAuthenticator
from postd.client.form import FormAuthenticator
from postd.client.tokens import ClientCredentialsAuthenticator, TokenFileAuthenticator, read_secret
from postd.errors import ConfigError
from postd.protocol.discovery import check_issuer, is_loopback
from postd.protocol.password import has_control
from postd.reactor import IReactor


class AuthContext(Struct, frozen=True):
    """What an authenticator is made from: the origin of the server, the agent that sends its requests, the reactor, and
    the PEM file of additional root certificates (empty for none).
    """

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
            raise ConfigError(type(self).__name__, "a user name or a password must not contain control characters")


class Basic(_Password, frozen=True):
    """User name and password, sent with each request (RFC 7617).

    Raises:
        ConfigError: control characters in one of them, or a colon in the name.
    """

    sends_secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" in self.user:
            raise ConfigError("Basic", "a user name must not contain a colon: it ends the name (RFC 7617 §2)")

    def make_authenticator(self, context: AuthContext) -> Authenticator:  # noqa: ARG002 - the same signature for all
        return _BasicAuthenticator(self)


class Digest(_Password, frozen=True):
    """User name and password for Digest: client and server prove that they know the password (RFC 7616, qop=auth).

    The password is not sent. Of MD5 and SHA-256 the stronger one that the server offers is used.

    Raises:
        ConfigError: control characters in one of them.
    """

    sends_secret: ClassVar[bool] = False

    def make_authenticator(self, context: AuthContext) -> Authenticator:  # noqa: ARG002 - the same signature for all
        return DigestAuthenticator(self.user, self.password)


class FormLogin(_Password, frozen=True):
    """User name and password for postd's sign-in form; requests carry the session cookie.

    Raises:
        ConfigError: control characters in one of them.
    """

    sends_secret: ClassVar[bool] = True

    def make_authenticator(self, context: AuthContext) -> Authenticator:
        return FormAuthenticator(
            self.user, self.password, origin=context.origin, agent=context.agent, reactor=context.reactor
        )


class BearerFile(Struct, frozen=True):
    """An access token in the first line of a file, which another program renews."""

    path: str
    sends_secret: ClassVar[bool] = True

    def make_authenticator(self, context: AuthContext) -> Authenticator:  # noqa: ARG002 - the same signature for all
        return TokenFileAuthenticator(self.path)


class ClientCredentials(Struct, frozen=True):
    """Access tokens from an issuer by the client credentials grant (RFC 6749 §4.4).

    Args:
        issuer: the issuer identifier, an https URL (http for loopback only).
        client_id: the client identifier at the issuer.
        client_secret_file: a file whose first line is the client secret.
        scope: the requested scope, words separated by spaces; empty for the issuer's default.
        resource: the resource that tokens are requested for (RFC 8707); empty for the issuer's default.

    Raises:
        ConfigError: `issuer` is not an issuer identifier.
    """

    issuer: str
    client_id: str
    client_secret_file: str
    scope: str = ""
    resource: str = ""
    sends_secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            check_issuer(self.issuer)
        except ValueError as error:
            raise ConfigError("issuer", str(error)) from None

    def make_authenticator(self, context: AuthContext) -> Authenticator:
        return ClientCredentialsAuthenticator(
            self.issuer,
            self.client_id,
            partial(read_secret, self.client_secret_file, "secret"),
            scope=self.scope,
            resource=self.resource,
            reactor=context.reactor,
            ca_file=context.ca_file,
        )


Auth = Basic | Digest | FormLogin | BearerFile | ClientCredentials


class _BasicAuthenticator(Authenticator):
    def __init__(self, basic: Basic) -> None:
        # Not treq's auth=, which sends credentials to every origin.
        encoded = b2a_base64(f"{basic.user}:{basic.password}".encode(), newline=False)
        self._value = b"Basic " + encoded

    async def authenticate(self, method: bytes, uri: bytes, headers: Headers) -> None:  # noqa: ARG002
        headers.setRawHeaders(b"Authorization", [self._value])


class AuthClient(HTTPClient):
    """treq's client with credentials for the requests to one origin: `await client.get(url)`.

    Requests by treq's own functions, `treq.get(url, agent=client.agent)`, carry the credentials too. Requests to other
    origins, also those of redirects, do not. Nothing is sent before the first request. A request fails with
    `SignInError` if no token is available or if the server does not prove that it knows the password; refused
    credentials are a response with status 401. treq's `timeout` limits a request; a connection that receives nothing
    for `postd.client.connection_pool.SILENT_MAX_S` is closed in any case.

    Args:
        reactor: the reactor.
        url: any URL of the origin.
        auth: the credentials; None for none.
        ca_file: PEM file of root certificates to trust in addition to the platform's; empty for none.
        plaintext: allow passwords and tokens over plain http to other machines.
        repeats: whether a request without a body that got no response on a kept connection is sent again on another.

    Raises:
        ConfigError: `url` is no http or https URL, a secret would be sent in plain text, or `ca_file` cannot be used.
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
        if auth is not None and auth.sends_secret and scheme != "https" and not is_loopback(host) and not plaintext:
            raise ConfigError(
                self.origin, f"{type(auth).__name__} would be sent in plain text; give an https URL, or use Digest"
            )
        reactor = cast("IReactor", reactor)
        self._connections = ConnectionPool(reactor, ca_file=ca_file, repeats=repeats)
        self._authenticator: Authenticator | None = None
        self.agent: IAgent = self._connections.agent
        if auth is not None:
            self._authenticator = auth.make_authenticator(AuthContext(self.origin, self.agent, reactor, ca_file))
            self.agent = AuthAgent(self.agent, self.origin, self._authenticator, reactor=reactor)
        super().__init__(self.agent)

    async def close(self) -> None:
        """End the session of a form login, and close all connections."""
        try:
            if self._authenticator is not None:
                await self._authenticator.close()
        finally:
            await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host, and the port if the URL has one.

    Raises:
        ConfigError: the URL is not http or https, has no host, or has an IPv6 address, which treq cannot connect to.
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
        raise ConfigError(repr(url), "this has an IPv6 address, which treq cannot connect to: use a host name")
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
