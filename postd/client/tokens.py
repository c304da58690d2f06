"""Access tokens of a client: from a file, or by the client credentials grant (RFC 6749 §4.4, RFC 6750 §2.1)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote_plus

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from postd.caching import SingleFlight
from postd.client.arguments import PATH, check_kind, check_text
from postd.client.authenticator import Authenticator
from postd.client.errors import SignInError
from postd.client.proofs import USE_NONCE, Proofs
from postd.credential_files import read_first_line
from postd.errors import ConfigError
from postd.net.fetching import Fetched, Fetcher, FetchError, UnusableError
from postd.protocol.bearer import BearerSyntaxError, decode_token
from postd.protocol.discovery import MetadataError, check_issuer, decode_document, endpoint_of, metadata_urls
from postd.protocol.members import decode_object, member
from postd.reactor import IReactor

RENEWAL_FRACTION = 0.2
"""The fraction of a token's lifetime that is left when its successor is requested in the background."""

RENEWAL_RETRY_S = 10.0
"""The delay before a failed background renewal is retried."""


def read_secret(file: str, what: str) -> str:
    """Return the first line of a small file, stripped; errors name its content as `what`.

    Raises:
        SignInError: the file cannot be read, or its first line is blank.
    """
    try:
        secret = read_first_line(file, errors="replace")
    except OSError as error:
        raise SignInError(f"{file}: cannot be read: {error.strerror}") from None
    if not secret:
        raise SignInError(f"{file}: has no {what} in its first line")
    return secret


def _check_token(token: str, where: str) -> str:
    try:
        return decode_token(token.encode())
    except BearerSyntaxError:
        raise SignInError(f"{where}: the content is not one token") from None


class Token(Struct, frozen=True):
    """An access token, with the times of the reactor at which it is to be renewed and expires."""

    text: str
    renew_at: float = math.inf
    expires_at: float = math.inf


class TokenSource(ABC):
    """The access tokens of a client, independent of the scheme that sends them."""

    @abstractmethod
    async def get(self) -> Token:
        """Return a token for a request.

        Raises:
            SignInError: no token is available.
        """

    @abstractmethod
    def should_retry(self, token: Token, status: int) -> bool:
        """Return whether a request should be sent again, because another token may be accepted.

        Args:
            token: the token that was sent.
            status: the status of the response.
        """

    async def close(self) -> None:  # noqa: B027 - a file needs none
        """End the request for a token that is in progress, if any."""


class BearerAuthenticator(Authenticator):
    """Sends tokens by Bearer (RFC 6750 §2.1)."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def authenticate(
        self,
        method: bytes,  # noqa: ARG002
        uri: bytes,  # noqa: ARG002
        headers: Headers,
        previous: Token | None = None,  # noqa: ARG002
    ) -> Token:
        token = await self._source.get()
        headers.setRawHeaders("Authorization", [f"Bearer {token.text}"])
        return token

    def should_retry(self, credentials: Token, uri: bytes, response: IResponse) -> bool:  # noqa: ARG002
        return self._source.should_retry(credentials, response.code)

    async def close(self) -> None:
        await self._source.close()


class BearerFile(Struct, frozen=True):
    """An access token in the first line of a file, which another program renews.

    Example::

        async with AuthClient(reactor, "http://127.0.0.1:8080", BearerFile("token")) as client:
            response = await client.get("http://127.0.0.1:8080/post")
            print(response.code)  # 200

    Raises:
        ConfigError: `path` is no path.
    """

    path: str

    def __post_init__(self) -> None:
        check_kind("path", self.path, PATH, "a path")


class TokenFile(TokenSource):
    """The token in the first line of a file, which is read again when the file has changed."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._state: tuple[int, ...] = ()
        self._token = Token("")

    async def get(self) -> Token:
        return self._read()

    def should_retry(self, token: Token, status: int) -> bool:
        return status == 401 and token != self._read()

    def _read(self) -> Token:
        try:
            status = Path(self._file).stat()
        except OSError as error:
            raise SignInError(f"{self._file}: cannot be read: {error.strerror}") from None
        # Not only the time: an older file may be restored.
        state = status.st_mtime_ns, status.st_size, status.st_ino
        if state != self._state:
            self._token = Token(_check_token(read_secret(self._file, "token"), self._file))
            self._state = state
        return self._token


class ClientCredentials(Struct, frozen=True):
    """Access tokens from an issuer by the client credentials grant (RFC 6749 §4.4).

    Example::

        credentials = ClientCredentials("https://issuer.example", "our-client", "client-secret", scope="read")
        async with AuthClient(reactor, "https://api.example", credentials) as client:
            ...  # the first `await client.get(url)` requests a token

    Args:
        issuer: the issuer identifier, an https URL (http for loopback only).
        client_id: the client identifier at the issuer.
        client_secret_file: a file whose first line is the client secret; read for each token, for it may change.
        scope: the requested scope, words separated by spaces; empty for the issuer's default.
        resource: the resource that tokens are requested for (RFC 8707); empty for the issuer's default.

    Raises:
        ConfigError: `issuer` is not an issuer identifier, or another argument is no text.
    """

    issuer: str
    client_id: str
    client_secret_file: str
    scope: str = ""
    resource: str = ""

    def __post_init__(self) -> None:
        for name in ("issuer", "client_id", "scope", "resource"):
            check_text(name, getattr(self, name))
        check_kind("client_secret_file", self.client_secret_file, PATH, "a path")
        try:
            check_issuer(self.issuer)
        except ValueError as error:
            raise ConfigError("issuer", str(error)) from None


class GrantedTokens(TokenSource):
    """Tokens that an issuer grants; its token endpoint is found by OpenID Connect Discovery or RFC 8414.

    A token is used until it expires, and renewed in the background before. Requests that find no token wait for one
    renewal (single flight). A token that was accepted before and is refused is replaced.

    Args:
        proofs: the proofs of the key that tokens are to be bound to, None for bearer tokens.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(
        self, credentials: ClientCredentials, *, reactor: IReactor, ca_file: str = "", proofs: Proofs | None = None
    ) -> None:
        self._credentials = credentials
        self._issuer = credentials.issuer
        wanted = {"grant_type": "client_credentials", "scope": credentials.scope, "resource": credentials.resource}
        self._form = {name: value for name, value in wanted.items() if value}
        self._proofs = proofs
        self._now = reactor.seconds
        self._fetcher = Fetcher(reactor, ca_file=ca_file)
        self._metadata: Mapping[str, object] | None = None
        self._token: Token | None = None
        self._accepted: Token | None = None
        self._retry_at = -math.inf
        self._under_way = SingleFlight[str, None]()
        self._running: Deferred[None] | None = None

    async def get(self) -> Token:
        now = self._now()
        token = self._token
        if token is None or now >= token.expires_at:
            await self._under_way.run("", self._renew)
            token = self._token
            if token is None:
                raise SignInError(f"{self._issuer}: the token was refused while requests waited for it")
        elif now >= max(token.renew_at, self._retry_at) and not self._under_way:
            # A failure is reported when the token has expired, not before.
            Deferred.fromCoroutine(self._under_way.run("", self._renew)).addErrback(lambda _: None)
        return token

    def should_retry(self, token: Token, status: int) -> bool:
        if status != 401:
            if status < 400:
                self._accepted = token
            return False
        if token is not self._token:
            return True
        self._token = None
        # A token that was never accepted would only be replaced by an equal one.
        return self._accepted is token

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _renew(self) -> None:
        self._retry_at = self._now() + RENEWAL_RETRY_S
        self._running = Deferred.fromCoroutine(self._ask())
        try:
            await self._running
        except CancelledError:
            raise SignInError(f"{self._issuer}: the client was closed") from None
        finally:
            self._running = None

    async def _ask(self) -> None:
        # Before any request: the file may not exist.
        secret = read_secret(self._credentials.client_secret_file, "secret")
        try:
            if self._metadata is None:
                self._metadata = await self._discover()
            fetched = await self._request(endpoint_of(self._metadata, "token_endpoint"), self._metadata, secret)
        except (UnusableError, MetadataError) as error:
            self._metadata = None  # the endpoint may have moved
            raise SignInError(f"{self._issuer}: {error}") from None
        except FetchError as error:
            raise SignInError(f"{self._issuer}: {error}", temporary=True) from None
        self._token = self._decode(fetched)

    async def _discover(self) -> Mapping[str, object]:
        openid, oauth = metadata_urls(self._issuer)
        try:
            return decode_document((await self._fetcher.get(openid)).content, self._issuer)
        except (UnusableError, MetadataError) as error:
            try:
                return decode_document((await self._fetcher.get(oauth)).content, self._issuer)
            except (UnusableError, MetadataError):
                # Most issuers have OpenID Connect metadata: its error is the helpful one.
                raise SignInError(f"{self._issuer}: {openid}: {error}") from None

    async def _request(self, endpoint: str, metadata: Mapping[str, object], secret: str) -> Fetched:
        """Return the response of the token endpoint; one that asks for a nonce gets one more request (RFC 9449 §8)."""
        fetched = await self._post(endpoint, metadata, secret)
        if self._take_nonce(endpoint, fetched) and (decode_object(fetched.content) or {}).get("error") == USE_NONCE:
            fetched = await self._post(endpoint, metadata, secret)
            self._take_nonce(endpoint, fetched)
        return fetched

    def _take_nonce(self, endpoint: str, fetched: Fetched) -> bool:
        return self._proofs is not None and self._proofs.take_nonce(endpoint, fetched.dpop_nonce)

    def _post(self, endpoint: str, metadata: Mapping[str, object], secret: str) -> Deferred[Fetched]:
        fields = {} if self._proofs is None else {"DPoP": self._proofs.make("POST", endpoint)}
        # The default is Basic (RFC 8414 §2), which every issuer must accept (RFC 6749 §2.3.1).
        client_id = self._credentials.client_id
        methods = member(metadata, "token_endpoint_auth_methods_supported")
        if isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods:
            form = {**self._form, "client_id": client_id, "client_secret": secret}
            return self._fetcher.post(endpoint, form, auth=None, fields=fields, urgent=False)
        # Form-encoded before they are used in Basic (RFC 6749 §2.3.1).
        auth = quote_plus(client_id), quote_plus(secret)
        return self._fetcher.post(endpoint, self._form, auth=auth, fields=fields, urgent=False)

    def _decode(self, fetched: Fetched) -> Token:
        """Return the token in a response of the token endpoint (RFC 6749 §5.1)."""
        document = decode_object(fetched.content)
        if document is None:
            raise SignInError(f"{self._issuer}: the response is not a JSON object")
        if fetched.status != 200 or member(document, "error") is not None:
            raise SignInError(f"{self._issuer}: no token granted: {_error_code(document)}")
        kind = str(member(document, "token_type")).lower()
        if self._proofs is not None and kind == "bearer":
            raise SignInError(f"{self._issuer}: the token is not bound to the key: the issuer grants a bearer token")
        expected = "bearer" if self._proofs is None else "DPoP"
        granted = member(document, "access_token")
        if kind != expected.lower() or not isinstance(granted, str):
            raise SignInError(f"{self._issuer}: the response has no {expected} token")
        text = _check_token(granted, self._issuer)
        expires_in = member(document, "expires_in")
        if isinstance(expires_in, str) and expires_in.isdecimal():  # as some issuers write it
            expires_in = int(expires_in[:9])
        # Without expires_in a token is used until it is refused.
        lifetime_s = float(expires_in) if isinstance(expires_in, int | float) and expires_in > 0 else math.inf
        now = self._now()
        renew_at = now + lifetime_s * (1 - RENEWAL_FRACTION) if math.isfinite(lifetime_s) else math.inf
        return Token(text, renew_at, now + lifetime_s)


def _error_code(document: Mapping[str, object]) -> str:
    """Return the error code (RFC 6749 §5.2) if it is safe to print on a terminal."""
    code = document.get("error")
    is_safe = isinstance(code, str) and code.isascii() and code.isprintable() and len(code) < 100
    return str(code) if is_safe else "no error code"
