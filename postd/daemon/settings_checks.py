"""Problems of settings that can be loaded: logged at start, and when the user file changes; shown by `postd check`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from postd.auth.user_file import Account
from postd.model import has_issuer
from postd.protocol.host import normalize_host
from postd.protocol.password import normalize
from postd.settings.schema import Page, Settings

_NAMES_MAX = 10
_PASSWORD_SCHEMES = frozenset({"basic", "digest", "session"})


def access_rules(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the schemes of each access rule, by "read", "write" and the path of each page."""
    pages = {str(page.path): page.schemes for page in settings.pages}
    return {"read": settings.api.read, "write": settings.api.write, **pages}


def describe_hosts(settings: Settings, *, local: bool, admin: bool = False) -> str:
    """Return a description of the hosts that a listener serves (`postd.web.server.allowed_hosts`).

    Args:
        settings: those in force.
        local: whether only this machine can reach the listener.
        admin: whether it is an admin listener.
    """
    own = [normalize_host(settings.public_url.partition("://")[2])] if settings.public_url else []
    names = list(dict.fromkeys([*settings.hosts, *own]))
    if "*" not in settings.hosts and settings.hosts and not admin:
        return _join_names(names)
    if "*" in settings.hosts or not local:
        return "any host"
    proxied = "; for any host from trusted proxies" if set(settings.trusted_proxies) - {"unix"} else ""
    return _join_names(["localhost", "*.localhost", "loopback addresses", *names]) + proxied


def exposure_problem(settings: Settings) -> str | None:
    """Return why no listener may be public and unencrypted, None if it may (reference: Safe by default)."""
    if "open" in settings.api.write and "open-writes" not in settings.insecure:
        return (
            "anyone who reaches this address could write, unencrypted; listen on loopback, unix: or ssl:, "
            'or add insecure = ["open-writes"] to the settings file'
        )
    secrets = [kind for kind, given in (("passwords", settings.users), ("tokens", settings.bearer)) if given]
    if secrets and "plaintext-passwords" not in settings.insecure and not settings.trusted_proxies:
        return (
            f"{' and '.join(secrets)} would travel in plain text; listen on loopback, unix: or ssl:, name the proxies "
            'that do TLS in trusted_proxies, or add insecure = ["plaintext-passwords"] to the settings file'
        )
    return None


def spoofing_problem(settings: Settings, endpoint: str) -> str | None:
    """Return why a UNIX socket must not be world-writable, None if it may.

    Args:
        settings: those in force.
        endpoint: the endpoint string of the socket.
    """
    if endpoint.startswith("haproxy:"):
        header = "a PROXY header"
    elif "unix" in settings.trusted_proxies:
        header = 'X-Forwarded-For, as trusted_proxies has "unix"'
    else:
        return None
    return (
        f"every user of this machine may connect to this socket, and claim any client address with {header}; leave out "
        "mode= (then 0660) or give a stricter one"
    )


def find_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return a sentence for each problem.

    Args:
        settings: those in force.
        accounts: those of the user file, by name; None if there is no such file.
    """
    return [*rule_problems(settings), *account_problems(settings, accounts)]


def rule_problems(settings: Settings) -> Iterator[str]:
    """Yield the problems of the settings alone, which concern tokens."""
    issuers = {str(issuer.issuer) for issuer in settings.bearer}
    accepting = [rule for rule, schemes in access_rules(settings).items() if "bearer" in schemes]
    if accepting and not issuers:
        yield f"no [[bearer]] is set: no token is accepted for {_join_names(accepting)}"
    if issuers and not accepting:
        yield '[[bearer]] is set, but no rule has "bearer" among its schemes: tokens are accepted nowhere'
    for issuer in settings.bearer:
        if issuer.client_id and not issuer.introspection_endpoint:
            yield f"client_id of {issuer.issuer} has no effect without introspection_endpoint"
    for page in settings.pages:
        for name in page.users:
            why = _page_user_problem(name, page, issuers)
            if why:
                yield f"page {page.path}: {name} of its users can never enter: {why}"


def _page_user_problem(name: str, page: Page, issuers: Collection[str]) -> str:
    issuer, hash_sign, user = name.partition("#")
    if not has_issuer(name):
        only_tokens = set(page.schemes) == {"bearer"}
        return 'it is an account of the user file, and "bearer" is the only scheme' if only_tokens else ""
    if not hash_sign or not user:
        return "the owner of a token is written ISSUER#NAME"
    if "bearer" not in page.schemes:
        return '"bearer" is not among the schemes'
    return "" if issuer in issuers else "there is no such issuer under [[bearer]]"


def account_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return the problems of the user file; `accounts` as for `find_problems`."""
    rules = access_rules(settings)
    if not settings.users:
        # The default pages alone do not require users.
        defaults = {page.path for page in Settings().pages} if settings.pages == Settings().pages else set()
        asking = [rule for rule, schemes in rules.items() if rule not in defaults and _PASSWORD_SCHEMES & set(schemes)]
        problem = f"users is not set: no password is accepted for {_join_names(asking)}"
        return [problem] if asking else []
    if not accounts:
        state = "there is no such user file yet" if accounts is None else "has no users"
        return [f"{settings.users}: {state}: no user can sign in"]
    problems = []
    for path, users in ((page.path, page.users) for page in settings.pages):
        missing = [name for name in users if not has_issuer(name) and normalize(name) not in accounts]
        if missing:
            problems.append(f"{settings.users}: has no {_join_names(missing)}, named by the users of page {path}")
    if any("digest" in schemes for schemes in rules.values()):
        without = [name for name, account in accounts.items() if not _can_use_digest(account, settings)]
        if without:
            cure = "give each a new password with `postd user passwd NAME`"
            problems.append(f"no Digest in the realm {str(settings.realm)!r} for {_join_names(without)}: {cure}")
    if any(account.h_a1 for account in accounts.values()):
        mode = _mode_of(settings.users)
        if mode & 0o077:
            problems.append(
                f"{settings.users} has mode {mode:04o}: its Digest hashes are as good as passwords; use 0600"
            )
    return problems


def _mode_of(path: str) -> int:
    try:
        return Path(path).stat().st_mode & 0o777
    except OSError:  # it was removed meanwhile
        return 0


def _can_use_digest(account: Account, settings: Settings) -> bool:
    return all(account.h_a1_for(settings.realm, algorithm) for algorithm in settings.digest.algorithms)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more
