"""Credentials as values, and `AuthClient`, treq's client that sends them.

Departure from stock treq, where `auth=` supports only Basic: credentials belong to the client and to one origin.
Passwords and tokens are sent only over TLS or to loopback, unless the caller allows plain text.
"""

from binascii import b2a_base64
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct
from treq.client import HTTPClient
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.arguments import PATH, check_kind, check_provides, check_reactor, check_text
from postd.client.authenticator import AuthAgent, Authenticator
from postd.client.connection_pool import ConnectionPool
from postd.client.digest import DigestAuthenticator
from postd.client.dpop import DPoP, DPoPAuthenticator
from postd.client.form import FormAuthenticator
from postd.client.proofs import Proofs
from postd.client.tokens import (
    BearerAuthenticator,
    BearerFile,
    ClientCredentials,
    GrantedTokens,
    TokenFile,
    TokenSource,
)
from postd.errors import ConfigError
from postd.protocol.host import is_loopback
from postd.protocol.password import has_control
from postd.reactor import AnyReactor, IReactor


class _Password(Struct, frozen=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    def __post_init__(self) -> None:
        check_text("user", self.user)
        check_text("password", self.password)
        if has_control(self.user + self.password):
            raise ConfigError(type(self).__name__, "a user name or a password must not contain control characters")


class Basic(_Password, frozen=True):
    """User name and password, sent with each request (RFC 7617).

    Example::

        print(Basic("alice", "wonderland"))  # Basic('alice')

    Raises:
        ConfigError: a control character in the name or the password, or a colon in the name.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" in self.user:
            raise ConfigError("Basic", "a user name must not contain a colon: it ends the name (RFC 7617 §2)")


class Digest(_Password, frozen=True):
    """User name and password for Digest: client and server prove that they know the password (RFC 7616, qop=auth).

    The password is not sent. The client uses SHA-256 if the server offers it, MD5 otherwise.

    Example::

        async with AuthClient(reactor, "http://127.0.0.1:8080", Digest("alice", "wonderland")) as client:
            response = await client.get("http://127.0.0.1:8080/digest")
            print(await response.text())  # Success: alice

    Raises:
        ConfigError: a control character in the name or the password.
    """


class FormLogin(_Password, frozen=True):
    """User name and password for postd's sign-in form; requests carry the session cookie.

    Example::

        async with AuthClient(reactor, "http://127.0.0.1:8080", FormLogin("alice", "wonderland")) as client:
            response = await client.get("http://127.0.0.1:8080/home")
            print(response.code)  # 200

    Raises:
        ConfigError: a control character in the name or the password.
    """


Auth = Basic | Digest | FormLogin | BearerFile | ClientCredentials | DPoP


class _BasicAuthenticator(Authenticator):
    def __init__(self, user: str, password: str) -> None:
        # Not treq's auth=, which sends credentials to every origin.
        encoded = b2a_base64(f"{user}:{password}".encode(), newline=False)
        self._value = b"Basic " + encoded

    async def authenticate(self, method: bytes, uri: bytes, headers: Headers, previous: None = None) -> None:  # noqa: ARG002
        headers.setRawHeaders(b"Authorization", [self._value])


class AuthClient(HTTPClient):
    """treq's client with credentials for the requests to one origin: `await client.get(url)`.

    Requests by treq's own functions, `treq.get(url, agent=client.agent)`, carry the credentials too. Requests to other
    origins do not, even after a redirect. Nothing is sent before the first request. A request fails with
    `SignInError` if no token is available or if the server does not prove that it knows the password; refused
    credentials are a response with status 401. treq's `timeout` limits a request; a connection that receives nothing
    for `postd.client.connection_pool.SILENT_MAX_S` is closed in any case.

    Example::

        async with AuthClient(reactor, "http://127.0.0.1:8080", Basic("alice", "wonderland")) as client:
            response = await client.get("http://127.0.0.1:8080/post")
            print(await response.json())  # []

    Args:
        url: any URL of the origin.
        ca_file: PEM file of root certificates to trust in addition to the platform's; empty for none.
        plaintext: allow passwords and tokens over plain http to other machines.
        repeats: whether a request without a body that got no response on a kept connection is sent again on another;
            with `DPoP`, on any connection, with a new proof.
        agent: sends the requests, in place of connections of the client's own, such as an agent in memory in a test.

    Raises:
        ConfigError: `url` is no http or https URL, a secret would be sent in plain text, or `auth` or `ca_file` cannot
            be used.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        reactor: AnyReactor,
        url: str,
        auth: Auth | None = None,
        *,
        ca_file: str = "",
        plaintext: bool = False,
        repeats: bool = True,
        agent: IAgent | None = None,
    ) -> None:
        reactor = check_reactor(reactor)
        self.origin = origin_of(url)
        check_kind("ca_file", ca_file, PATH, "a path")
        if agent is not None:
            check_provides("agent", agent, IAgent, "an IAgent")
        if auth is not None and not plaintext:
            check_encrypted(self.origin, type(auth))
        # The pool would repeat a request as it is, with the same proof.
        is_single_use = isinstance(auth, DPoP)
        self._connections = ConnectionPool(reactor, ca_file=ca_file, repeats=repeats and not is_single_use)
        self._authenticator: Authenticator | None = None
        self.agent: IAgent = self._connections.agent if agent is None else agent
        if auth is not None:
            self._authenticator = _make_authenticator(auth, self.origin, self.agent, reactor, ca_file)
            self.agent = AuthAgent(
                self.agent, self.origin, self._authenticator, reactor=reactor, repeats=repeats and is_single_use
            )
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


def check_encrypted(url: str, kind: type[Auth]) -> None:
    """Check that credentials of a kind would not be sent in clear text to another machine.

    Raises:
        ConfigError: they would be, or `url` is no http or https URL.
    """
    origin = urlsplit(origin_of(url))
    if not issubclass(kind, Digest) and origin.scheme != "https" and not is_loopback(origin.hostname or ""):
        raise ConfigError(origin.geturl(), f"{kind.__name__} would be sent in clear text; use an https URL, or Digest")


def _make_authenticator(auth: Auth, origin: str, agent: IAgent, reactor: IReactor, ca_file: str) -> Authenticator:
    match auth:
        case Basic(user, password):
            return _BasicAuthenticator(user, password)
        case Digest(user, password):
            return DigestAuthenticator(user, password)
        case FormLogin(user, password):
            return FormAuthenticator(user, password, origin=origin, agent=agent, reactor=reactor)
        case BearerFile() | ClientCredentials():
            return BearerAuthenticator(_make_source(auth, reactor, ca_file))
        case DPoP(token_source, key):
            proofs = Proofs(key)
            return DPoPAuthenticator(_make_source(token_source, reactor, ca_file, proofs), proofs)
        case _:
            raise ConfigError("auth", f"{type(auth).__name__} is none of the credentials of postd.client")


def _make_source(
    source: BearerFile | ClientCredentials, reactor: IReactor, ca_file: str, proofs: Proofs | None = None
) -> TokenSource:
    match source:
        case BearerFile(path):
            return TokenFile(path)
        case ClientCredentials():
            return GrantedTokens(source, reactor=reactor, ca_file=ca_file, proofs=proofs)


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host, and the port if the URL has one.

    Raises:
        ConfigError: the URL is not http or https, has no host, or has an IPv6 address, which treq cannot connect to.
    """
    check_kind("url", url, str, "text")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    plain = url.isascii() and url.isprintable() and " " not in url
    if not plain or not host or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise ConfigError(repr(url), "not a URL such as https://posts.example or http://127.0.0.1:8080")
    if "[" in parts.netloc:
        raise ConfigError(repr(url), "treq cannot connect to an IPv6 address in a URL: use a host name")
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
