"""Make an `Issuer` of access tokens from its settings and the files that they name."""

from pathlib import Path

from postd.auth.bearer import Issuer
from postd.errors import ConfigError
from postd.protocol.jwt import TokenPolicy
from postd.reactor import IReactor
from postd.settings.schema import BearerSettings


def make_issuer(settings: BearerSettings, *, where: str = "bearer", reactor: IReactor) -> Issuer:
    """Return an issuer of access tokens.

    Args:
        settings: its table of the settings file.
        where: names the table in messages, as `postd.toml: bearer[0]`.
        reactor: as for `Issuer`.

    Raises:
        ConfigError: its `ca_file` or its `client_secret_file` cannot be used.
    """
    policy = TokenPolicy(
        issuer=settings.issuer,
        audiences=frozenset(settings.audiences),
        algorithms=frozenset(settings.algorithms),
        token_types=frozenset(settings.token_types),
        scope_claims=settings.scope_claims,
        user_claim=settings.user_claim,
        required_claims=settings.accepted_claims,
        leeway_s=settings.leeway_s,
    )
    try:
        return Issuer(
            policy,
            reactor=reactor,
            jwks_uri=settings.jwks_uri,
            ca_file=settings.ca_file,
            read_scope=settings.read_scope,
            write_scope=settings.write_scope,
            introspection_endpoint=settings.introspection_endpoint,
            client_id=settings.client_id,
            client_secret=_read_secret(settings.client_secret_file),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.where}", error.why) from None


def _read_secret(file: str) -> str:
    """Return the first line of a file, empty if no file is named."""
    if not file:
        return ""
    try:
        secret = Path(file).read_text("utf-8").partition("\n")[0].strip()
    except OSError as error:
        raise ConfigError("client_secret_file", f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise ConfigError("client_secret_file", f"{file}: has no text in its first line")
    return secret
