"""OpenID providers, as values, made from arguments or from a table `[[sign_in]]` of the settings.

The modules that sign users in are imported only if there is a provider (`postd.protect.issuers`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from postd.errors import ConfigError
from postd.protect.arguments import among, check, expected, words
from postd.protect.issuers import accepted_values
from postd.protocol import jwt
from postd.protocol.discovery import check_issuer
from postd.protocol.id_token import IdTokenPolicy
from postd.protocol.jwt import Algorithm, Scalar
from postd.protocol.sign_in import SCOPES, ClientAuth, Logout, check_button, check_id, find_contradiction
from postd.reactor import IReactor

if TYPE_CHECKING:
    from postd.auth.sign_in import Provider


class TrustedProvider(Struct, frozen=True):
    """An OpenID provider, as `provider` returns it.

    Args:
        id: its id, in URLs.
        name: its name for people.
        policy: the accepted ID tokens.
        place: stands before the name of an option in errors.
    """

    id: str
    name: str
    policy: IdTokenPolicy
    client_secret_file: str = ""
    client_key_file: str = ""
    client_auth: ClientAuth = "auto"
    scopes: tuple[str, ...] = SCOPES
    ca_file: str = ""
    logout: Logout = "local"
    place: str = ""

    @property
    def issuer(self) -> str:
        """The issuer identifier."""
        return self.policy.issuer

    def make(self, reactor: IReactor) -> "Provider":
        """Return the provider.

        Raises:
            ConfigError: a file of the provider cannot be used.
        """
        from postd.auth.bearer import read_secret  # noqa: PLC0415 - imports treq and joserfc
        from postd.auth.sign_in import ClientKey, Provider  # noqa: PLC0415 - imports treq and joserfc

        try:
            return Provider(
                self.policy,
                reactor=reactor,
                id=self.id,
                name=self.name,
                client_secret=read_secret(self.client_secret_file),
                client_key=ClientKey.read(self.client_key_file),
                client_auth=self.client_auth,
                scopes=self.scopes,
                ca_file=self.ca_file,
                signs_out=self.logout == "provider",
            )
        except ConfigError as error:
            raise ConfigError(f"{self.place}{error.where}", error.why) from None


def provider(  # noqa: PLR0913 - the keys of a table
    id: str,  # noqa: A002 - the key of its table
    issuer: str,
    *,
    name: str,
    client_id: str,
    client_secret_file: str = "",
    client_key_file: str = "",
    client_auth: ClientAuth = "auto",
    scopes: Sequence[str] = SCOPES,
    user_claim: str = jwt.USER_CLAIM,
    name_claim: str = "",
    required_claims: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
    algorithms: Sequence[Algorithm] = jwt.ALGORITHMS,
    ca_file: str = "",
    logout: Logout = "local",
) -> TrustedProvider:
    """Return an OpenID provider, where users sign in with a button of the form::

        Protection(reactor, providers=[provider("example", "https://idp.example", name="Example", client_id="app")])

    The redirect URI to register there is the URL of the form, and `login/<id>/callback` below it.

    Args:
        id: its id, in the URLs of the form: lower-case letters, digits and hyphens.
        issuer: the issuer identifier: the exact value of `iss` in its tokens (OpenID Connect Discovery 1.0 §3).
        name: its name on the button, "Sign in with ...".
        client_id: the client identifier of the program there.
        client_secret_file: a file whose first line is its secret; "" for a public client.
        client_key_file: a file with its private key, PEM or a JWK, for `private_key_jwt`.
        client_auth: "client_secret_basic", "client_secret_post", "private_key_jwt" or "none"; "auto" to choose by
            discovery.
        scopes: the requested scopes, "openid" among them.
        user_claim: the claim with the name of the account, which is `ISSUER#NAME`; an "email" has to be verified.
        name_claim: the claim with the name that pages show; "" for the first of `name`, `preferred_username`, `email`
            and `user_claim`.
        required_claims: further claims with their accepted value, or a list of accepted values.
        algorithms: the accepted signature algorithms (RFC 7518 §3.1), none of them symmetric.
        ca_file: a PEM file with root certificates, trusted in addition to the root certificates of the system.
        logout: "local" to end the session in this program alone, "provider" to sign out at the provider, too.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    claims = {} if required_claims is None else required_claims
    if not isinstance(claims, Mapping):
        raise expected("required_claims", "a mapping of claims to values", claims)
    among("algorithms", algorithms, get_args(Algorithm))
    among("client_auth", (client_auth,), get_args(ClientAuth))
    among("logout", (logout,), get_args(Logout))
    asked = words("scopes", scopes)
    texts = {"client_secret_file": client_secret_file, "client_key_file": client_key_file}
    for key, text in {**texts, "client_id": client_id, "name_claim": name_claim, "ca_file": ca_file}.items():
        if not isinstance(text, str):
            raise expected(key, "text", text)
    key, why = find_contradiction(client_id=client_id, client_auth=client_auth, scopes=asked, **texts)
    if why:
        raise ValueError(f"{key}: {why}")
    policy = IdTokenPolicy(
        issuer=check("issuer", check_issuer, issuer),
        client_id=client_id,
        algorithms=frozenset(algorithms),
        user_claim=words("user_claim", (user_claim,))[0],
        name_claim=name_claim,
        required_claims={claim: accepted_values(claim, value) for claim, value in claims.items()},
    )
    checked = check("id", check_id, id)
    return TrustedProvider(
        checked,
        check("name", check_button, name),
        policy,
        client_secret_file,
        client_key_file,
        client_auth,
        asked,
        ca_file,
        logout,
        f"providers: {checked}: ",
    )


def check_providers(providers: object) -> tuple[TrustedProvider, ...]:
    """Return the providers of a `Protection`, whose ids must differ.

    Raises:
        ValueError: a value is not a result of `provider()`, or an id is there twice.
    """
    listed = tuple(providers) if isinstance(providers, Iterable) and not isinstance(providers, str) else (None,)
    known = set[str]()
    for one in listed:
        if not isinstance(one, TrustedProvider):
            raise expected("providers", "a list of results of provider()", providers)
        if one.id in known:
            raise ValueError(f"providers: the id {one.id} is there twice")
        known.add(one.id)
    return listed
