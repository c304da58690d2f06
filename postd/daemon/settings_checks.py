"""What settings ask for and users cannot do: told at start, when the user file changes, and by `postd check`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from postd.auth.user_file import Account
from postd.model import has_issuer
from postd.protocol.host import normalize_host
from postd.protocol.password import normalize
from postd.settings.schema import Page, Settings

_NAMES_MAX = 10
_PASSWORD_SCHEMES = frozenset({"basic", "digest", "session"})


def rules_of(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the schemes that let a client in, by what they let it into: "read", "write", and each page's path."""
    pages = {str(page.path): page.schemes for page in settings.pages}
    return {"read": settings.api.read, "write": settings.api.write, **pages}


def hosts_of(settings: Settings, *, local: bool, admin: bool = False) -> str:
    """Return the hosts that a listener answers requests for, in words (`postd.web.server.allowed_hosts`).

    Args:
        settings: have them.
        local: whether only this machine can reach the listener.
        admin: whether it is an admin listener.
    """
    own = [normalize_host(settings.public_url.partition("://")[2])] if settings.public_url else []
    names = list(dict.fromkeys([*settings.hosts, *own]))
    if "*" not in settings.hosts and settings.hosts and not admin:
        return _listed(names)
    if "*" in settings.hosts or not local:
        return "any host"
    proxied = "; for any host from trusted proxies" if set(settings.trusted_proxies) - {"unix"} else ""
    return _listed(["localhost", "*.localhost", "loopback addresses", *names]) + proxied


def exposure_problem(settings: Settings) -> str | None:
    """Return why there must be no listener that strangers can reach and read along, None if there may (contract 7)."""
    if "open" in settings.api.write and "open-writes" not in settings.insecure:
        return (
            "anyone who reaches this address could write, unencrypted; listen on loopback, unix: or ssl:, "
            'or add insecure = ["open-writes"] to the settings file'
        )
    secrets = [what for what, given in (("passwords", settings.users), ("tokens", settings.bearer)) if given]
    if secrets and "plaintext-passwords" not in settings.insecure and not settings.trusted_proxies:
        return (
            f"{' and '.join(secrets)} would travel in plain text; listen on loopback, unix: or ssl:, name the proxies "
            'that do TLS in trusted_proxies, or add insecure = ["plaintext-passwords"] to the settings file'
        )
    return None


def forgery_problem(settings: Settings, endpoint: str) -> str | None:
    """Return why not every user of this machine may connect to a UNIX socket, None if they may.

    Args:
        settings: those in force.
        endpoint: what the socket is of.
    """
    if endpoint.startswith("haproxy:"):
        header = "a PROXY header"
    elif "unix" in settings.trusted_proxies:
        header = 'X-Forwarded-For, as trusted_proxies has "unix"'
    else:
        return None
    return (
        f"every user of this machine may connect to this socket, and pass for any client by {header}; leave out mode= "
        "(0660 then) or give a stricter one"
    )


def find_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return a sentence for each thing that cannot work.

    Args:
        settings: what is asked for.
        accounts: those of the user file, by name; None if it is not there.
    """
    return [*rule_problems(settings), *account_problems(settings, accounts)]


def rule_problems(settings: Settings) -> Iterator[str]:
    """Return those of the settings alone, which are about tokens."""
    issuers = {str(issuer.issuer) for issuer in settings.bearer}
    asking = [what for what, schemes in rules_of(settings).items() if "bearer" in schemes]
    if asking and not issuers:
        yield f"no [[bearer]] is set: no token is accepted, which {_listed(asking)} would ask for"
    if issuers and not asking:
        yield 'no rule has "bearer" among its schemes: tokens are accepted nowhere'
    for issuer in settings.bearer:
        if issuer.client_id and not issuer.introspection_endpoint:
            yield f"client_id of {issuer.issuer} is of use only with introspection_endpoint"
    for page in settings.pages:
        for name in page.users:
            why = _why_shut_out(name, page, issuers)
            if why:
                yield f"{name}, who may enter {page.path}, cannot: {why}"


def _why_shut_out(name: str, page: Page, issuers: Collection[str]) -> str:
    issuer, hash_sign, user = name.partition("#")
    if not has_issuer(name):
        return "a name of the user file, and only tokens are asked for there" if set(page.schemes) == {"bearer"} else ""
    if not hash_sign or not user:
        return "the owner of a token is written ISSUER#NAME"
    if "bearer" not in page.schemes:
        return "no token is asked for there"
    return "" if issuer in issuers else "there is no such issuer under [[bearer]]"


def account_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return those of the user file; `accounts` as for `find_problems`."""
    rules = rules_of(settings)
    if not settings.users:
        # The pages that are there by default ask nobody for users.
        defaults = {page.path for page in Settings().pages} if settings.pages == Settings().pages else set()
        asking = [what for what, schemes in rules.items() if what not in defaults and _PASSWORD_SCHEMES & set(schemes)]
        what = f"users is not set: nobody can sign in with a password, which {_listed(asking)} would ask for"
        return [what] if asking else []
    if not accounts:
        state = "there is no such user file yet" if accounts is None else "has no users"
        return [f"{settings.users}: {state}: nobody can sign in"]
    problems = []
    for path, users in ((page.path, page.users) for page in settings.pages):
        missing = [name for name in users if not has_issuer(name) and normalize(name) not in accounts]
        if missing:
            problems.append(f"{settings.users}: has no {_listed(missing)}, who may enter {path}")
    if any("digest" in schemes for schemes in rules.values()):
        without = [name for name, account in accounts.items() if not _can_use_digest(account, settings)]
        if without:
            cure = "give each a new password with `postd user passwd NAME`"
            problems.append(f"no Digest in the realm {str(settings.realm)!r} for {_listed(without)}: {cure}")
    if any(account.h_a1 for account in accounts.values()):
        mode = _mode_of(settings.users)
        if mode & 0o077:
            problems.append(f"{settings.users} has mode {mode:04o}: what it keeps for Digest is as good as passwords")
    return problems


def _mode_of(path: str) -> int:
    try:
        return Path(path).stat().st_mode & 0o777
    except OSError:  # it has gone since
        return 0


def _can_use_digest(account: Account, settings: Settings) -> bool:
    return all(account.h_a1_for(settings.realm, algorithm) for algorithm in settings.digest.algorithms)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more
