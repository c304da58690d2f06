"""Access tokens that are bound to a key, sent with a proof of the key (DPoP, RFC 9449)."""

from pathlib import Path

from msgspec import Struct
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from postd.client.arguments import PATH, check_kind
from postd.client.authenticator import Authenticator
from postd.client.proofs import USE_NONCE, Proofs
from postd.client.tokens import BearerFile, ClientCredentials, Token, TokenSource
from postd.credential_files import FILE_MAX_BYTES
from postd.errors import ConfigError
from postd.protocol.challenge import decode_challenges
from postd.protocol.dpop_proof import DPoPKey


class DPoP(Struct, frozen=True):
    """Access tokens that are of use only with a key: each request carries a proof of the key (RFC 9449).

    Example::

        credentials = DPoP(BearerFile("token"), load_dpop_key("key.pem"))
        async with AuthClient(reactor, "https://api.example", credentials) as client:
            ...  # each `await client.get(url)` sends the token, and a new proof

    Args:
        token_source: the source of the tokens. A token of `ClientCredentials` is requested with a proof, too, so that
            the issuer binds it to the key; a token in a `BearerFile` has to be bound to the key already.
        key: the key, of `load_dpop_key` or `DPoPKey.generate`.

    Raises:
        ConfigError: an argument is of another kind.
    """

    token_source: BearerFile | ClientCredentials
    key: DPoPKey

    def __post_init__(self) -> None:
        check_kind(
            "token_source", self.token_source, (BearerFile, ClientCredentials), "BearerFile or ClientCredentials"
        )
        check_kind("key", self.key, DPoPKey, "a key of load_dpop_key or DPoPKey.generate")


def load_dpop_key(path: str) -> DPoPKey:
    """Read a key from a file, as `DPoPKey.decode` decodes it.

    Example::

        print(load_dpop_key("key.pem").algorithm)  # ES256

    Raises:
        ConfigError: the file cannot be read, or has no such key.
    """
    check_kind("path", path, PATH, "a path")
    try:
        with Path(path).open("rb") as opened:
            return DPoPKey.decode(opened.read(FILE_MAX_BYTES))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(path), str(error)) from None


class _Exchange(Struct):
    """A request with all its transmissions: the last token, and whether the server has asked for a nonce."""

    token: Token
    was_asked: bool = False


class DPoPAuthenticator(Authenticator):
    """Sends tokens with proofs; a request that is refused for want of a nonce is sent once more, with the nonce."""

    def __init__(self, source: TokenSource, proofs: Proofs) -> None:
        self._source = source
        self._proofs = proofs

    async def authenticate(
        self, method: bytes, uri: bytes, headers: Headers, previous: _Exchange | None = None
    ) -> _Exchange:
        token = await self._source.get()
        proof = self._proofs.make(method.decode("ascii"), uri.decode("ascii"), token.text)
        headers.setRawHeaders("Authorization", [f"DPoP {token.text}"])
        headers.setRawHeaders("DPoP", [proof])
        return _Exchange(token, previous is not None and previous.was_asked)

    def should_retry(self, credentials: _Exchange, uri: bytes, response: IResponse) -> bool:
        has_nonce = self._proofs.take_nonce(uri.decode("ascii"), response.headers.getRawHeaders(b"DPoP-Nonce", []))
        if not _asks_for_nonce(response):
            return self._source.should_retry(credentials.token, response.code)
        was_asked, credentials.was_asked = credentials.was_asked, True
        return has_nonce and not was_asked

    async def close(self) -> None:
        await self._source.close()


def _asks_for_nonce(response: IResponse) -> bool:
    challenges = decode_challenges(response.headers.getRawHeaders(b"WWW-Authenticate", []))
    asks = any(found.scheme == "dpop" and found.parameters.get("error") == USE_NONCE for found in challenges)
    return response.code == 401 and asks
