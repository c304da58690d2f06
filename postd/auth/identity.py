"""The results of authentication: the identity of a client, and the outcome for log and metrics."""

import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

Revalidate = Callable[[], Awaitable[bool]]
"""Returns whether an identity is still valid. It changes neither counts nor the age of a session."""


async def always_valid() -> bool:
    """Return True: the `Revalidate` of an identity that never expires."""
    return True


class Identity(Struct, frozen=True):
    """An authenticated client.

    Args:
        account: the name of the account, normalized (NFC) for a user file, as the checker returns it for a stock
            checker; `ISSUER#NAME` for the owner of a token, because two issuers may use the same name.
        scheme: the scheme of the credentials: `basic`, `digest`, `form`, `passkey`, `sign_in`, `session`, `bearer`,
            `dpop` or `token`.
        issuer: the issuer of the token, or of the provider whose user has the session or the personal access token;
            empty for other credentials.
        scopes: the scopes of the token.
        claims_json: the claims of the token, or the introspection response, as a JSON object.
        revalidate: returns whether the identity is still valid.
        shown_name: the name for people, empty for that of the account.
    """

    account: str
    scheme: str
    issuer: str = ""
    scopes: frozenset[str] = frozenset()
    revalidate: Revalidate = always_valid
    claims_json: bytes = b"{}"
    shown_name: str = ""

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.scheme!r}, issuer={self.issuer!r})"  # claims may be secret

    @property
    def claims(self) -> Mapping[str, object]:
        """The claims of the token, read-only; a copy, because the requests with a token share its identity."""
        return MappingProxyType(json.loads(self.claims_json))

    @property
    def is_token(self) -> bool:
        """Whether the credentials are a token, which has scopes."""
        return self.scheme in {"bearer", "dpop", "token"}

    @property
    def name(self) -> str:
        """The name of the account; the value of the user claim for a token."""
        return self.account[len(self.issuer) + 1 :] if self.issuer else self.account


class SignedIn(Struct, frozen=True):
    """What a session needs to know of a sign-in at an OpenID provider.

    Args:
        provider: the id of the provider in the settings.
        shown_name: the name of the user for people.
        subject: the user at the provider (`sub`).
        sid: the session at the provider, empty if it names none.
        id_token: the ID token, to sign out at the provider; empty if that is not wanted.
        authenticated: when the user has authenticated there (`auth_time`); 0 if it is not known.
    """

    provider: str
    shown_name: str
    subject: str
    sid: str
    id_token: str = ""
    authenticated: float = 0.0

    def __repr__(self) -> str:
        return f"SignedIn({self.provider!r})"


class AuthenticationResult(Struct, frozen=True):
    """The outcome of checking the credentials in a request.

    Args:
        scheme: that of the credentials.
        outcome: `accepted`, `forbidden`, `refused`, `stale`, `unproven`, `throttled` or `unavailable`; None while the
            credentials are checked.
        account: the account or the owner of the token, None if the credentials were not accepted.
        identity: the client, None if the credentials do not let it in.
        portal: the portal that has accepted the credentials, None without an identity.
    """

    scheme: str
    outcome: str | None
    account: str | None = None
    identity: Identity | None = None
    portal: object = None
