"""Issuers of access tokens, as values, made from arguments or from a table `[[bearer]]` of the settings.

The modules that check tokens and fetch keys are imported only if there is an issuer: they import treq and joserfc, 70
modules.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from postd.errors import ConfigError
from postd.protect.arguments import among, check, expected, words
from postd.protocol import jwt
from postd.protocol.bearer import decode_scope
from postd.protocol.discovery import check_issuer, check_url
from postd.protocol.jwt import (
    Algorithm,
    Binding,
    IdTokens,
    Introspected,
    Scalar,
    TokenPolicy,
    find_contradiction,
)
from postd.protocol.quantity import DURATION_MAX_S, decode_duration
from postd.reactor import IReactor

if TYPE_CHECKING:
    from postd.auth.bearer import Issuer


class TrustedIssuer(Struct, frozen=True):
    """An issuer of access tokens, as `issuer` returns it.

    Args:
        policy: the accepted tokens.
        place: stands before the name of an option in errors.
    """

    policy: TokenPolicy
    jwks_uri: str = ""
    ca_file: str = ""
    read_scope: str = ""
    write_scope: str = ""
    introspection_endpoint: str = ""
    introspect: Introspected = "opaque"
    client_id: str = ""
    client_secret_file: str = ""
    place: str = ""

    @property
    def url(self) -> str:
        """The issuer identifier."""
        return self.policy.issuer

    def make(self, reactor: IReactor) -> "Issuer":
        """Return the issuer.

        Raises:
            ConfigError: a file of the issuer cannot be used.
        """
        from postd.auth.bearer import Issuer, read_secret  # noqa: PLC0415 - imports treq and joserfc

        try:
            return Issuer(
                self.policy,
                reactor=reactor,
                jwks_uri=self.jwks_uri,
                ca_file=self.ca_file,
                read_scope=self.read_scope,
                write_scope=self.write_scope,
                introspection_endpoint=self.introspection_endpoint,
                introspect=self.introspect,
                client_id=self.client_id,
                client_secret=read_secret(self.client_secret_file),
            )
        except ConfigError as error:
            raise ConfigError(f"{self.place}{error.where}", error.why) from None


def issuer(  # noqa: PLR0913 - the keys of a table
    url: str,
    *,
    audience: str | Sequence[str],
    jwks_uri: str = "",
    algorithms: Sequence[Algorithm] = jwt.ALGORITHMS,
    token_types: Sequence[str] = jwt.TOKEN_TYPES,
    scope_claims: Sequence[str] = jwt.SCOPE_CLAIMS,
    read_scope: str = "",
    write_scope: str = "",
    user_claim: str = jwt.USER_CLAIM,
    required_claims: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
    leeway: float | str = jwt.LEEWAY_S,
    dpop: Binding = "refuse",
    mtls: Binding = "refuse",
    id_tokens: IdTokens = "refuse",
    ca_file: str = "",
    introspection_endpoint: str = "",
    introspect: Introspected = "opaque",
    client_id: str = "",
    client_secret_file: str = "",
) -> TrustedIssuer:
    """Return an issuer of access tokens::

        Protection(reactor, issuers=[issuer("https://idp.example", audience="https://app.example")])

    Args:
        url: the issuer identifier: the exact value of `iss` in its tokens (RFC 8414 §2).
        audience: the accepted audience, or several; "" skips the check of `aud` and needs `required_claims`.
        jwks_uri: the URL of the keys; "" to find it by discovery (OpenID Connect Discovery 1.0, then RFC 8414).
        algorithms: the accepted signature algorithms (RFC 7518 §3.1), none of them symmetric.
        token_types: the accepted values of `typ`.
        scope_claims: the claims that hold scopes.
        read_scope: the scope that is required for safe methods, words separated by spaces; "" for none.
        write_scope: the scope that is required for other methods, likewise.
        user_claim: the claim with the name of the token's owner.
        required_claims: further claims with their accepted value, or a list of accepted values.
        leeway: the clock skew allowed: seconds, or text such as "30s".
        dpop: tokens that are bound to a key (RFC 9449): "refuse" them, "accept" them in addition to bearer tokens, or
            "require" them.
        mtls: the same for tokens that are bound to a client certificate (RFC 8705).
        id_tokens: whether to "refuse" or "accept" JWTs that look like ID tokens: with `nonce`, `at_hash`, `c_hash`,
            `s_hash` or `auth_time`, and no scope, the scope "openid" or a client as the audience.
        ca_file: a PEM file with root certificates, trusted in addition to the root certificates of the system.
        introspection_endpoint: the URL for opaque tokens (RFC 7662); "" to refuse them.
        introspect: the tokens that are sent there: "opaque" ones, or "all" of the issuer, JWTs included.
        client_id: the client identifier of the program there.
        client_secret_file: a file whose first line is its secret.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    audiences = () if audience == "" else words("audience", (audience,) if isinstance(audience, str) else audience)
    claims = {} if required_claims is None else required_claims
    if not isinstance(claims, Mapping):
        raise expected("required_claims", "a mapping of claims to values", claims)
    among("algorithms", algorithms, get_args(Algorithm))
    among("dpop", (dpop,), get_args(Binding))
    among("mtls", (mtls,), get_args(Binding))
    among("id_tokens", (id_tokens,), get_args(IdTokens))
    among("introspect", (introspect,), get_args(Introspected))
    key, why = find_contradiction(
        audiences=audiences,
        required_claims=claims,
        client_id=client_id,
        client_secret_file=client_secret_file,
        introspect=introspect,
        introspection_endpoint=introspection_endpoint,
    )
    if why:
        raise ValueError(f"{key}: {why}")
    scopes = {"read_scope": read_scope, "write_scope": write_scope}
    for name, scope in scopes.items():
        check(name, decode_scope, scope)
    endpoints = {"jwks_uri": jwks_uri, "introspection_endpoint": introspection_endpoint}
    for name, endpoint in endpoints.items():
        if endpoint != "":
            check(name, check_url, endpoint)
    texts = {"ca_file": ca_file, "client_id": client_id, "client_secret_file": client_secret_file}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise expected(name, "text", text)
    accepted = check("url", check_issuer, url)
    policy = TokenPolicy(
        issuer=accepted,
        audiences=frozenset(audiences),
        algorithms=frozenset(algorithms),
        token_types=frozenset(words("token_types", token_types)),
        scope_claims=words("scope_claims", scope_claims, may_be_empty=True),
        user_claim=words("user_claim", (user_claim,))[0],
        required_claims={name: accepted_values(name, value) for name, value in claims.items()},
        leeway_s=_leeway(leeway),
        dpop=dpop,
        mtls=mtls,
        id_tokens=id_tokens,
    )
    return TrustedIssuer(policy, **endpoints, **texts, **scopes, introspect=introspect, place=f"issuers: {accepted}: ")


def check_issuers(issuers: object) -> tuple[TrustedIssuer, ...]:
    """Return the issuers of a `Protection`, which must differ.

    Raises:
        ValueError: a value is not a result of `issuer()`, or an issuer is there twice.
    """
    listed = tuple(issuers) if isinstance(issuers, Iterable) and not isinstance(issuers, str) else (None,)
    known = set[str]()
    for one in listed:
        if not isinstance(one, TrustedIssuer):
            raise expected("issuers", "a list of results of issuer()", issuers)
        if one.url in known:
            raise ValueError(f"issuers: {one.url} is there twice; audience may be several")
        known.add(one.url)
    return listed


def accepted_values(claim: str, value: object) -> tuple[Scalar, ...]:
    """Return the accepted values of a claim, of which there may be one or several."""
    values = (value,) if isinstance(value, Scalar) else tuple(value) if isinstance(value, Sequence) else ()
    if not values or not all(isinstance(one, Scalar) for one in values):
        raise expected("required_claims", f"a text, number or boolean for {claim!r}, or several", value)
    return values


def _leeway(value: float | str) -> float:
    if isinstance(value, str):
        return check("leeway", decode_duration, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= DURATION_MAX_S:
        raise expected("leeway", 'seconds, or a duration such as "30s"', value)
    return float(value)
