"""Sign-in at OpenID providers: authorization codes in, accounts `ISSUER#NAME` out (OpenID Connect Core 1.0 §3.1).

The browser is redirected to the provider and comes back with a code (`postd.protect.sign_in`). This module exchanges
the code for an ID token, checks the token (`postd.protocol.id_token`), and asks UserInfo where a claim is missing.
Neither codes nor tokens are logged.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

from joserfc.jws import JWSRegistry
from msgspec import Struct
from msgspec.structs import replace
from twisted.cred.credentials import ICredentials
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from zope.interface import Attribute, implementer

from postd.auth.checker import Checker
from postd.auth.credentials import Refused, log_refusal, log_throttled
from postd.auth.identity import Identity, SignedIn
from postd.auth.jwks import KeySource
from postd.auth.throttle import Throttle, address_keys
from postd.credential_files import FILE_MAX_BYTES
from postd.errors import ConfigError, IssuerUnavailableError, TooManyFailuresError
from postd.net.fetching import Fetched, Fetcher, FetchError, NoDocumentError, RepeatFilter, UnusableError
from postd.protocol.base64url import encode_base64url
from postd.protocol.discovery import MetadataError, endpoint_of
from postd.protocol.dpop_proof import DPoPKey
from postd.protocol.id_token import IdTokenPolicy, LogoutToken, Person
from postd.protocol.jwt import Jwt, TokenError, decode_date, decode_jwt, describe
from postd.protocol.members import decode_object, member
from postd.protocol.sign_in import (
    SCOPES,
    ClientAuth,
    PendingSignIn,
    assertion_claims,
    assertion_form,
    basic_auth,
    choose_client_auth,
    make_authorization_url,
    make_token_form,
)
from postd.reactor import IReactor

REQUEST_MAX_S = 10.0
"""The limit of a request to the provider."""

ID_TOKEN_MAX_BYTES = 4096
"""The longest ID token that is kept with a session."""

SCHEME = "sign_in"
"""The scheme of authorization codes, in log and metrics."""

_TOKEN_STATUSES = frozenset({200, 400, 401})
"""Statuses of the token endpoint (RFC 6749 §5.2)."""


class IAuthorizationCodeCredentials(ICredentials):
    """An authorization code of an OpenID provider, with the sign-in that it belongs to."""

    provider: str = Attribute("the id of the provider in the settings")
    code: str = Attribute("the code")
    pending: PendingSignIn = Attribute("the sign-in that it belongs to")
    address: str = Attribute("the client's address, for log and throttle")


@implementer(IAuthorizationCodeCredentials)
class AuthorizationCode(Struct, frozen=True):
    provider: str
    code: str
    pending: PendingSignIn
    address: str

    def __repr__(self) -> str:
        return f"AuthorizationCode({self.provider!r}, address={self.address!r})"


class ClientKey(Struct, frozen=True):
    """The private key of a client, for `private_key_jwt`.

    Args:
        key: the key.
        key_id: its `kid`, empty if it has none.
        has_algorithm: whether the key names its algorithm; if not, that of RSA is chosen by the provider's metadata.
    """

    key: DPoPKey
    key_id: str = ""
    has_algorithm: bool = False

    @classmethod
    def read(cls, file: str) -> Self | None:
        """Read a key in PEM or a JWK from a file; None if no file is named.

        Raises:
            ConfigError: it cannot be read, or has no such key.
        """
        if not file:
            return None
        try:
            with Path(file).open("rb") as opened:
                content = opened.read(FILE_MAX_BYTES)
            key = DPoPKey.decode(content)
        except OSError as error:
            raise ConfigError("client_key_file", f"{file}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError("client_key_file", f"{file}: {error}") from None
        jwk = decode_object(content) or {}
        return cls(key, str(member(jwk, "kid", "")), member(jwk, "alg") is not None)

    def sign(self, claims: bytes, metadata: Mapping[str, object]) -> str:
        """Return a JWT with claims."""
        key = self.key
        announced = member(metadata, "token_endpoint_auth_signing_alg_values_supported", ["RS256"])
        if key.jwk["kty"] == "RSA" and not self.has_algorithm and "RS256" in announced:
            key = replace(key, algorithm="RS256")  # what providers support (OpenID Connect Discovery 1.0 §3)
        header = {"typ": "JWT", "alg": key.algorithm} | ({"kid": self.key_id} if self.key_id else {})
        signed = f"{encode_base64url(json.dumps(header).encode())}.{encode_base64url(claims)}"
        signature = JWSRegistry.algorithms[key.algorithm].sign(signed.encode("ascii"), key.private)
        return f"{signed}.{encode_base64url(signature)}"


class Provider:
    """An OpenID provider, where users sign in.

    Args:
        policy: the accepted ID tokens.
        reactor: for timers and requests.
        id: its id in the settings.
        name: its name for people.
        client_secret: the secret of this server there, empty for none.
        client_key: the key of this server there, None for none.
        client_auth: how this server authenticates.
        scopes: the requested scopes.
        ca_file: a PEM file of root certificates to trust beside the platform's; empty for none.
        signs_out: whether signing out goes on to the provider.
        now: the wall clock, by which tokens expire, in seconds since the epoch.

    Attributes:
        url: its issuer identifier.
        keys: the source of its keys and of its metadata.
        fingerprint: identifies its accounts; sessions with another fingerprint are not valid.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - the keys of a table
        self,
        policy: IdTokenPolicy,
        *,
        reactor: IReactor,
        id: str,  # noqa: A002 - the key of its table
        name: str,
        client_secret: str = "",
        client_key: ClientKey | None = None,
        client_auth: ClientAuth = "auto",
        scopes: Sequence[str] = SCOPES,
        ca_file: str = "",
        signs_out: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self.id, self.name = policy, id, name
        self.url = policy.issuer
        self.signs_out = signs_out
        self.fingerprint = policy.fingerprint
        self.now = now
        self._secret, self._key, self._auth, self._scopes = client_secret, client_key, client_auth, scopes
        self._fetcher = Fetcher(reactor, ca_file=ca_file, now=now, max_s=REQUEST_MAX_S)
        self.keys = KeySource(policy.issuer, self._fetcher, reactor=reactor, name=f"sign_in {id}")
        self._warnings = RepeatFilter()
        self._running = set[Deferred[tuple[Person, str]]]()

    def start(self) -> None:
        """Fetch metadata and keys, and refresh them from now on."""
        self.keys.start()

    def stop_refreshing(self) -> None:
        """Stop refreshing, because another object of the same provider replaces this one."""
        self.keys.stop_refreshing()

    def stop(self) -> None:
        """Stop refreshing, and cancel running requests."""
        self.keys.stop()
        for running in list(self._running):
            running.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether its tokens can be checked: the keys are there."""
        return self.keys.is_ready

    def client_auth(self, metadata: Mapping[str, object]) -> ClientAuth:
        """Return how this server authenticates at the token endpoint."""
        return choose_client_auth(self._auth, metadata, secret=bool(self._secret), key=self._key is not None)

    @property
    def end_session_endpoint(self) -> str:
        """The URL that signs users out at the provider; empty if that is not wanted, or the provider has none."""
        if not self.signs_out or not self.keys.metadata:
            return ""
        try:
            return endpoint_of(self.keys.metadata, "end_session_endpoint")
        except MetadataError:
            return ""

    async def authorization_url(self, pending: PendingSignIn) -> str:
        """Return the URL to which the browser is redirected.

        Raises:
            IssuerUnavailableError: the provider's metadata cannot be fetched, or have no such URL.
        """
        metadata = await self.keys.find_metadata()
        endpoint = self._endpoint(metadata, "authorization_endpoint")
        return make_authorization_url(endpoint, self.policy.client_id, self._scopes, pending)

    async def redeem(self, code: str, pending: PendingSignIn) -> tuple[Person, str]:
        """Exchange a code; return who has signed in, and the ID token.

        Raises:
            TokenError: the provider refuses the code, or a token or a claim is not accepted.
            IssuerUnavailableError: the provider does not answer.
        """
        running = Deferred.fromCoroutine(self._redeem(code, pending))
        self._running.add(running)
        try:
            return await running
        except CancelledError:  # by `stop`
            raise IssuerUnavailableError(self.url) from None
        finally:
            self._running.discard(running)

    async def _redeem(self, code: str, pending: PendingSignIn) -> tuple[Person, str]:
        metadata = await self.keys.find_metadata()
        answer = await self._ask_for_tokens(code, pending, metadata)
        id_token, access_token = member(answer, "id_token"), member(answer, "access_token", "")
        if not isinstance(id_token, str) or not isinstance(access_token, str) or not access_token:
            raise TokenError("the answer of the token endpoint has no ID token, or no access token")
        if str(member(answer, "token_type", "Bearer")).lower() != "bearer":
            raise TokenError("token_type is not Bearer")
        jwt = decode_jwt(id_token)
        await self._verify(jwt)
        claims = self.policy.check(
            jwt,
            nonce=pending.nonce,
            access_token=access_token,
            now=self.now(),
            authenticated_since=pending.begun if pending.fresh else None,
        )
        authenticated = decode_date(claims, "auth_time") or 0.0
        if self.policy.needs_user_info(claims) and member(metadata, "userinfo_endpoint") is not None:
            claims = self.policy.add_user_info(claims, await self._fetch_user_info(metadata, access_token))
        return replace(self.policy.find_person(claims), authenticated=authenticated), id_token

    async def check_logout(self, token: str) -> LogoutToken:
        """Check a logout token; whether it was used before is for the caller to check.

        Raises:
            TokenError: it is not accepted.
            IssuerUnavailableError: no keys could be fetched so far.
        """
        jwt = decode_jwt(token)
        await self._verify(jwt)
        return self.policy.check_logout(jwt, self.now())

    async def _verify(self, jwt: Jwt) -> None:
        """Verify the signature of a token."""
        if jwt.issuer != self.url:
            raise TokenError("iss is another issuer")
        self.policy.check_header(jwt)
        keys = await self.keys.find(jwt)
        if not keys:
            raise TokenError("no key of the issuer matches the token")
        if not any(key.verify(jwt) for key in keys):
            raise TokenError("its signature is wrong")

    async def _ask_for_tokens(
        self, code: str, pending: PendingSignIn, metadata: Mapping[str, object]
    ) -> Mapping[str, object]:
        endpoint = self._endpoint(metadata, "token_endpoint")
        client_id, form, auth = self.policy.client_id, make_token_form(self.policy.client_id, code, pending), None
        match self.client_auth(metadata):
            case "client_secret_basic":
                auth = basic_auth(client_id, self._secret)
                del form["client_id"]
            case "client_secret_post":
                form["client_secret"] = self._secret
            case "private_key_jwt" if self._key is not None:
                claims = assertion_claims(client_id, self.url, self.now())
                form |= assertion_form(self._key.sign(claims, metadata))
        try:
            fetched = await self._fetcher.post(endpoint, form, auth=auth, urgent=False, statuses=_TOKEN_STATUSES)
            return _decode(fetched)
        except FetchError as error:
            self._fail(error.at(endpoint))

    async def _fetch_user_info(self, metadata: Mapping[str, object], access_token: str) -> Mapping[str, object]:
        endpoint = self._endpoint(metadata, "userinfo_endpoint")
        try:
            answer = decode_object((await self._fetcher.get(endpoint, token=access_token)).content)
        except NoDocumentError as error:
            raise TokenError(f"UserInfo refuses the access token: {error}") from None
        except FetchError as error:
            self._fail(error.at(endpoint))
        if answer is None:
            raise TokenError("UserInfo is not a JSON object")
        return answer

    def _endpoint(self, metadata: Mapping[str, object], name: str) -> str:
        try:
            return endpoint_of(metadata, name)
        except MetadataError as error:
            self._fail(UnusableError(str(error)))

    def _fail(self, error: FetchError) -> NoReturn:
        if self._warnings.is_new(str(error)):
            self._log.warn("sign_in {id}: {why}", id=self.id, why=str(error))
        raise IssuerUnavailableError(self.url, error.retry_after_s) from None


def _decode(fetched: Fetched) -> Mapping[str, object]:
    """Decode an answer of the token endpoint.

    Raises:
        TokenError: it is an error (RFC 6749 §5.2).
        UnusableError: it is no answer of a token endpoint.
    """
    answer = decode_object(fetched.content)
    if answer is None:
        raise UnusableError(f"the response (HTTP status {fetched.status}) is not a JSON object")
    error = member(answer, "error")
    if error is not None or fetched.status != 200:
        raise TokenError(f"the provider refuses the code{describe(str(error))}")
    return answer


class AuthorizationCodeChecker(Checker):
    """Authorization codes. Refused ones count as failures of their address.

    Args:
        providers: the providers.
        throttle: limits failures.
    """

    credentialInterfaces = (IAuthorizationCodeCredentials,)

    def __init__(self, providers: Sequence[Provider], throttle: Throttle) -> None:
        self._providers = {provider.id: provider for provider in providers}
        self._throttle = throttle

    async def check(self, credentials: AuthorizationCode) -> "CodeIdentity":
        """Return the user who has signed in.

        Raises:
            Refused: the code, the ID token or a claim is not accepted.
            IssuerUnavailableError: the provider does not answer.
            TooManyFailuresError: the throttle does not admit a code from this address.
            StoreUnavailableError: the throttle's counts cannot be read or written.
        """
        provider, address = self._providers[credentials.provider], credentials.address
        try:
            attempt = await self._throttle.reserve(await self._throttle.admit(address_keys(address)))
        except TooManyFailuresError as error:
            raise log_throttled(SCHEME, error, address) from None
        try:
            person, id_token = await provider.redeem(credentials.code, credentials.pending)
        except TokenError as error:
            await self._throttle.record_failure(attempt)
            raise log_refusal(SCHEME, Refused(f"{provider.id}: {error}"), address) from None
        except Exception:
            await self._throttle.release(attempt)
            raise
        await self._throttle.release(attempt)
        is_kept = provider.signs_out and len(id_token) <= ID_TOKEN_MAX_BYTES
        return CodeIdentity(
            f"{provider.url}#{person.name}",
            SCHEME,
            provider.url,
            claims_json=json.dumps(person.claims).encode(),
            shown_name=person.shown_name,
            signed_in=SignedIn(
                provider.id,
                person.shown_name,
                person.subject,
                person.sid,
                id_token if is_kept else "",
                person.authenticated,
            ),
        )


class CodeIdentity(Identity, frozen=True, kw_only=True):
    """The identity that an authorization code proves, with what its session needs."""

    signed_in: SignedIn
