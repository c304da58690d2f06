"""Problems of settings that can be loaded: logged at start, and when the user file changes; shown by `postd check`."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from postd.auth.user_file import Account
from postd.errors import join_names
from postd.protocol.bearer import has_issuer
from postd.protocol.host import normalize_host
from postd.protocol.password import normalize
from postd.schemes import load_schemes
from postd.settings.schema import Settings


def describe_hosts(settings: Settings, *, local: bool, admin: bool = False) -> str:
    """Return a description of the hosts that a listener serves (`postd.front.allowed_hosts`).

    Args:
        settings: those in force.
        local: whether only this machine can reach the listener.
        admin: whether it is an admin listener.
    """
    own = [normalize_host(settings.public_url.partition("://")[2])] if settings.public_url else []
    names = list(dict.fromkeys([*settings.hosts, *own]))
    if "*" not in settings.hosts and settings.hosts and not admin:
        return join_names(names)
    if "*" in settings.hosts or not local:
        return "any host"
    proxied = "; for any host from trusted proxies" if set(settings.trusted_proxies) - {"unix"} else ""
    return join_names(["localhost", "*.localhost", "loopback addresses", *names]) + proxied


def exposure_problem(settings: Settings) -> str | None:
    """Return why no listener may be public and unencrypted, None if it may (reference: Safe by default)."""
    if "open" in settings.api.write and "open-writes" not in settings.insecure:
        return (
            "writes are open to other machines, without TLS; listen on loopback, unix: or ssl:, "
            'or add insecure = ["open-writes"] to the settings file'
        )
    secrets = list(dict.fromkeys(filter(None, (one.secrets(settings, name) for name, one in load_schemes().items()))))
    if secrets and "plaintext-passwords" not in settings.insecure and not settings.trusted_proxies:
        return (
            f"{' and '.join(secrets)} would be sent in clear text; listen on loopback, unix: or ssl:, list the proxies "
            'that terminate TLS in trusted_proxies, or add insecure = ["plaintext-passwords"] to the settings file'
        )
    return None


def spoofing_problem(settings: Settings, endpoint: str) -> str | None:
    """Return why the UNIX socket of an endpoint string must not be world-writable, None if it may."""
    if endpoint.startswith("haproxy:"):
        header = "a PROXY header"
    elif "unix" in settings.trusted_proxies:
        header = 'X-Forwarded-For, as trusted_proxies has "unix"'
    else:
        return None
    return (
        f"every user of this machine can connect to this socket and claim any client address with {header}; remove "
        "mode= (default 0660) or set a stricter one"
    )


def find_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return a sentence for each problem; `accounts` are those of the user file, None if there is no such file."""
    return [*settings_problems(settings), *account_problems(settings, accounts)]


def settings_problems(settings: Settings) -> Iterator[str]:
    """Yield the problems of the settings alone."""
    schemes, rules = load_schemes(), settings.access_rules
    for name, scheme in schemes.items():
        yield from scheme.settings_problems(settings, [rule for rule, allowed in rules.items() if name in allowed])
    for page in settings.pages:
        if not any(schemes[name].has_bare_names for name in page.schemes):
            for account in (name for name in page.users if not has_issuer(name)):
                why = "it is a name of the user file, and all schemes of the page identify users by issuer"
                yield f"page {page.path}: {account} of its users can never have access: {why}"


def account_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return the problems of the user file; `accounts` as for `find_problems`."""
    schemes, rules = load_schemes(), settings.access_rules
    if not settings.users:
        # The default pages alone do not require users.
        defaults = {page.path for page in Settings().pages} if settings.pages == Settings().pages else set()
        with_accounts = {name for name, scheme in schemes.items() if scheme.uses_accounts}
        asking = [rule for rule, allowed in rules.items() if rule not in defaults and with_accounts & set(allowed)]
        return [f"users is not set: no password is accepted for {join_names(asking)}"] if asking else []
    if not accounts:
        state = "the user file does not exist yet" if accounts is None else "has no users"
        return [f"{settings.users}: {state}: no user can sign in"]
    problems = []
    for page in settings.pages:
        missing = [name for name in page.users if not has_issuer(name) and normalize(name) not in accounts]
        if missing and all(schemes[name].uses_accounts or not schemes[name].has_bare_names for name in page.schemes):
            problems.append(f"{settings.users}: has no {join_names(missing)}, named by the users of page {page.path}")
    for name, scheme in schemes.items():
        if settings.uses_scheme(name):
            problems += scheme.account_problems(settings, accounts)
    if any(account.h_a1 for account in accounts.values()):
        with suppress(OSError):  # it was removed since
            mode = Path(settings.users).stat().st_mode & 0o777
            if mode & 0o077:
                why = "its Digest hashes are equivalent to passwords; set mode 0600"
                problems.append(f"{settings.users} has mode {mode:04o}: {why}")
    return problems
