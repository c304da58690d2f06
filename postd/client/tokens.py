"""Access tokens: where a client has them from (RFC 6749 §4.4, RFC 6750 §2.1)."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import orjson
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.http_headers import Headers

from postd.caching import UnderWay
from postd.client.errors import SignInError
from postd.client.signing import Signer
from postd.net.fetching import Fetched, Fetcher, FetchError, UnusableError
from postd.protocol.bearer import BearerSyntaxError, decode_token
from postd.protocol.discovery import MetadataError, decode_document, endpoint_of, metadata_urls
from postd.reactor import IReactor

AHEAD = 0.2
"""Which part of a token's life is left when the next one is asked for, while it still serves."""

AGAIN_AFTER_S = 10.0
"""How soon the next token is asked for again, if that failed while the last one still serves."""

FILE_MAX_BYTES = 64 * 1024


def read_secret(file: str, what: str) -> str:
    """Return the first line of a small file without the white space around it.

    Args:
        file: its path.
        what: what is in it, for messages.

    Raises:
        SignInError: it cannot be read, or has nothing in its first line.
    """
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(FILE_MAX_BYTES)
    except OSError as error:
        raise SignInError(f"{file}: cannot be read: {error.strerror}") from None
    secret = content.partition(b"\n")[0].strip().decode(errors="replace")
    if not secret:
        raise SignInError(f"{file}: has no {what} in its first line")
    return secret


def _check_token(token: str, where: str) -> bytes:
    try:
        return decode_token(token.encode()).encode("ascii")
    except BearerSyntaxError:
        raise SignInError(f"{where}: what is there is not one token") from None


class FileSigner(Signer):
    """Shows the token in a file, which is read anew when it has changed.

    Args:
        file: its path; the token is its first line.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._state: tuple[int, ...] = ()
        self._token = b""

    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        headers.setRawHeaders(b"Authorization", [b"Bearer " + self._read()])
        return self._token

    def is_wanted_again(self, signed: bytes, uri: bytes, answer: Any) -> bool:  # noqa: ARG002
        return answer.code == 401 and signed != self._read()

    def _read(self) -> bytes:
        try:
            status = Path(self._file).stat()
        except OSError as error:
            raise SignInError(f"{self._file}: cannot be read: {error.strerror}") from None
        # Not the time alone: an older file may be put back.
        state = status.st_mtime_ns, status.st_size, status.st_ino
        if state != self._state:
            self._token = _check_token(read_secret(self._file, "token"), self._file)
            self._state = state
        return self._token


class _Token(Struct, frozen=True):
    text: bytes
    ahead_at: float
    ends: float


class CredentialsSigner(Signer):
    """Shows tokens that an issuer gives to a client for its own name and secret (RFC 6749 §4.4).

    A token serves until it expires; before that the next one is asked for, and nobody waits for it. Those who find
    none wait for one and the same. A token that worked and is refused is replaced.

    Args:
        issuer: its identifier; where it gives tokens is found by OpenID Connect Discovery or RFC 8414.
        client_id: our name there.
        secret: reads the password that goes with it; each time, for it may be changed.
        scope: what is asked for; empty for what the issuer thinks right.
        resource: whom the token is to be for (RFC 8707); empty likewise.
        reactor: the clock.
        ca_file: PEM file of further roots to trust when asking the issuer; none if it is empty.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(  # noqa: PLR0913 - a client has as many sides
        self,
        issuer: str,
        client_id: str,
        secret: Callable[[], str],
        *,
        scope: str = "",
        resource: str = "",
        reactor: IReactor,
        ca_file: str = "",
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._secret = secret
        wanted = {"grant_type": "client_credentials", "scope": scope, "resource": resource}
        self._form = {name: value for name, value in wanted.items() if value}
        self._now = reactor.seconds
        self._fetcher = Fetcher(reactor, ca_file=ca_file)
        self._metadata: Mapping[str, Any] | None = None
        self._token: _Token | None = None
        self._worked: _Token | None = None
        self._again_at = -math.inf
        self._under_way = UnderWay[str, None]()
        self._running: Deferred[None] | None = None

    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> _Token:  # noqa: ARG002
        now = self._now()
        token = self._token
        if token is None or now >= token.ends:
            await self._under_way.join("", self._renew)
            token = self._token
            if token is None:
                raise SignInError(f"{self._issuer}: the token was refused while others waited for it")
        elif now >= max(token.ahead_at, self._again_at) and not self._under_way:
            # What goes wrong is told when it matters: when the token has expired.
            Deferred.fromCoroutine(self._under_way.join("", self._renew)).addErrback(lambda _: None)
        headers.setRawHeaders(b"Authorization", [b"Bearer " + token.text])
        return token

    def is_wanted_again(self, signed: _Token, uri: bytes, answer: Any) -> bool:  # noqa: ARG002
        if answer.code != 401:
            if answer.code < 400:
                self._worked = signed
            return False
        if signed is not self._token:
            return True
        self._token = None
        # One that never worked is not made better by another one of the same kind.
        return self._worked is signed

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _renew(self) -> None:
        self._again_at = self._now() + AGAIN_AFTER_S
        self._running = Deferred.fromCoroutine(self._ask())
        try:
            await self._running
        except CancelledError:
            raise SignInError(f"{self._issuer}: the client was closed") from None
        finally:
            self._running = None

    async def _ask(self) -> None:
        secret = self._secret()  # before anybody is asked: the file may not be there
        try:
            if self._metadata is None:
                self._metadata = await self._discover()
            endpoint = endpoint_of(self._metadata, "token_endpoint")
            fetched = await self._post(endpoint, self._metadata, secret)
        except UnusableError as error:
            self._metadata = None  # it may have moved
            raise SignInError(f"{self._issuer}: {error}") from None
        except FetchError as error:
            raise SignInError(f"{self._issuer}: {error}", passing=True) from None
        except MetadataError as error:
            self._metadata = None
            raise SignInError(f"{self._issuer}: {error}") from None
        self._token = self._decode(fetched)

    async def _discover(self) -> Mapping[str, Any]:
        openid, oauth = metadata_urls(self._issuer)
        try:
            return decode_document((await self._fetcher.get(openid)).content, self._issuer)
        except (UnusableError, MetadataError) as error:
            try:
                return decode_document((await self._fetcher.get(oauth)).content, self._issuer)
            except (UnusableError, MetadataError):
                # What the first one said is what most issuers are to be asked about.
                raise UnusableError(f"{openid}: {error}") from None

    def _post(self, endpoint: str, metadata: Mapping[str, Any], secret: str) -> Deferred[Fetched]:
        # What an issuer does not say is Basic (RFC 8414 §2), which all have to take (RFC 6749 §2.3.1).
        ways = metadata.get("token_endpoint_auth_methods_supported")
        if isinstance(ways, list) and "client_secret_basic" not in ways and "client_secret_post" in ways:
            form = {**self._form, "client_id": self._client_id, "client_secret": secret}
            return self._fetcher.post(endpoint, form, auth=None, urgent=False)
        # Encoded as in a form before they are put into Basic (RFC 6749 §2.3.1).
        auth = quote_plus(self._client_id), quote_plus(secret)
        return self._fetcher.post(endpoint, self._form, auth=auth, urgent=False)

    def _decode(self, fetched: Fetched) -> _Token:
        """Return the token of an answer (RFC 6749 §5.1)."""
        try:
            told = orjson.loads(fetched.content)
        except orjson.JSONDecodeError:
            told = None
        if not isinstance(told, dict):
            raise SignInError(f"{self._issuer}: its answer is no JSON object")
        if fetched.status != 200 or "error" in told:
            raise SignInError(f"{self._issuer}: it gives no token: {_error_code(told)}")
        if str(told.get("token_type")).lower() != "bearer" or not isinstance(told.get("access_token"), str):
            raise SignInError(f"{self._issuer}: its answer has no bearer token")
        text = _check_token(told["access_token"], self._issuer)
        expires_in = told.get("expires_in")
        if isinstance(expires_in, str) and expires_in.isdecimal():  # some issuers write it so
            expires_in = int(expires_in[:9])
        # Without a word on it, it lasts until it is refused.
        lasts_s = float(expires_in) if isinstance(expires_in, int | float) and expires_in > 0 else math.inf
        now = self._now()
        ahead_at = now + lasts_s * (1 - AHEAD) if math.isfinite(lasts_s) else math.inf
        return _Token(text, ahead_at, now + lasts_s)


def _error_code(told: Mapping[str, Any]) -> str:
    """Return the error's code (RFC 6749 §5.2); what else an answer may say is not for our terminal."""
    code = told.get("error")
    return code if isinstance(code, str) and code.isascii() and code.isprintable() and len(code) < 100 else "no reason"
