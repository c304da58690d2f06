"""Problems of settings that can be loaded: logged at start, and when the user file changes; shown by `postd check`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from postd.auth.user_file import Account
from postd.auth.user_file_editing import find_write_problem
from postd.errors import join_names
from postd.net.endpoint_strings import has_tls, is_loopback_only, is_proxied
from postd.protect.schemes.interface import Deployment, Rule, Scheme
from postd.protocol.bearer import has_issuer
from postd.protocol.host import normalize_host
from postd.protocol.password import normalize
from postd.settings.schema import Page, Settings


def describe_hosts(settings: Settings, *, local: bool, admin: bool = False) -> str:
    """Return a description of the hosts that a listener serves (`postd.front.allowed_hosts`).

    Args:
        settings: the settings in force.
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


def describe_deployment(settings: Settings) -> Deployment:
    """Return the settings that the checks of schemes need."""
    pages = {str(page.path): page for page in settings.pages}
    if settings.public_url or settings.hosts:
        names_any_host = not settings.public_url and "*" in settings.hosts
    else:
        names_any_host = bool(settings.trusted_proxies) or not all(map(is_loopback_only, settings.listen))
    return Deployment(
        [_describe_rule(name, schemes, pages.get(name)) for name, schemes in settings.access_rules.items()],
        has_users=bool(settings.users),
        names_any_host=names_any_host,
        sees_certificates=settings.tls.client_certificates != "no" or bool(settings.trusted_proxies),
        public_url=settings.public_url,
        is_local=not settings.trusted_proxies and all(map(is_loopback_only, settings.listen)),
    )


def _describe_rule(name: str, schemes: Sequence[str], page: Page | None) -> Rule:
    if page is None:
        return Rule(name, schemes)
    return Rule(name, schemes, page.users, [*filter(None, (page.read_scope, page.write_scope))])


def exposure_problem(settings: Settings, schemes: Sequence[Scheme]) -> str | None:
    """Return why no listener may be public and unencrypted, None if it may (reference: Safe by default)."""
    if "open" in settings.api.write and "open-writes" not in settings.insecure:
        return (
            "writes are open to other machines, without TLS; listen on loopback, unix: or ssl:, "
            'or add insecure = ["open-writes"] to the settings file'
        )
    deployment = describe_deployment(settings)
    secrets = list(dict.fromkeys(filter(None, (scheme.secrets(deployment) for scheme in schemes))))
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


def find_problems(settings: Settings, schemes: Sequence[Scheme], accounts: Mapping[str, Account] | None) -> list[str]:
    """Return a sentence for each problem; `accounts` are those of the user file, None if there is no such file."""
    return [*settings_problems(settings, schemes), *account_problems(settings, schemes, accounts)]


def settings_problems(settings: Settings, schemes: Sequence[Scheme]) -> Iterator[str]:
    """Yield the problems of the settings alone."""
    deployment, api = describe_deployment(settings), settings.api
    for scheme in schemes:
        yield from scheme.problems(deployment)
    if api.own and "open" in api.write:
        yield '[api] own: write has "open": posts that are added without credentials can be changed only by moderators'
    if api.moderators and not api.own:
        yield "[api] moderators: without own = true, all who may write may change all posts"
    yield from _endpoint_problems(settings)
    accepting = {scheme.name: scheme.issuers_of_users for scheme in schemes}
    for rule in deployment.rules:
        for owner in filter(has_issuer, rule.users):
            why = _owner_problem(owner, rule, accepting)
            if why:
                yield f"page {rule.name}: {owner} of its users can never have access: {why}"
    by_issuer = {scheme.name for scheme in schemes if not scheme.has_bare_names}
    for page in settings.pages:
        if by_issuer.issuperset(page.schemes):
            for account in (name for name in page.users if not has_issuer(name)):
                why = "it is a name of the user file, and all schemes of the page identify users by issuer"
                yield f"page {page.path}: {account} of its users can never have access: {why}"


def _endpoint_problems(settings: Settings) -> Iterator[str]:
    for endpoint in (*settings.listen, *settings.admin.listen):
        if is_proxied(endpoint) and has_tls(endpoint):
            yield f"{endpoint}: expects the PROXY header inside TLS, where no known proxy sends it; use haproxy:tcp:"


def _owner_problem(owner: str, rule: Rule, accepting: Mapping[str, Collection[str]]) -> str:
    """Return why a user of an issuer has no access by a rule; `accepting` has the issuers by scheme."""
    issuer, hash_sign, user = owner.partition("#")
    if not hash_sign or not user:
        return "the owner of a token is written ISSUER#NAME"
    schemes = [name for name, issuers in accepting.items() if issuer in issuers]
    if not schemes:
        return "neither [[bearer]] nor [[sign_in]] has such an issuer"
    if set(schemes).isdisjoint(rule.schemes):
        named = " or ".join(f'"{name}"' for name in schemes)
        return f"{named} is not among the schemes"
    return ""


def account_problems(
    settings: Settings, schemes: Sequence[Scheme], accounts: Mapping[str, Account] | None
) -> list[str]:
    """Return the problems of the user file; `accounts` as for `find_problems`."""
    return [*_find_write_problems(settings), *_account_problems(settings, schemes, accounts)]


def _find_write_problems(settings: Settings) -> Iterator[str]:
    """Yield why users cannot change their passwords although they may."""
    if not settings.accounts.change_password:
        return
    if not settings.users:
        yield "[accounts] change_password: users is not set: there are no passwords to change"
        return
    problem = find_write_problem(Path(settings.users))
    if problem:
        yield f"[accounts] change_password: {settings.users}: {problem}; no password can be changed"


def _account_problems(
    settings: Settings, schemes: Sequence[Scheme], accounts: Mapping[str, Account] | None
) -> list[str]:
    with_accounts = {scheme.name for scheme in schemes if scheme.uses_accounts}
    elsewhere = {scheme.name for scheme in schemes if scheme.uses_accounts and scheme.issuers_of_users}
    if not settings.users:
        # The default pages alone do not require users.
        defaults = {page.path for page in Settings().pages} if settings.pages == Settings().pages else set()
        rules = settings.access_rules.items()
        asking = [
            rule for rule, allowed in rules if rule not in defaults and (with_accounts - elsewhere) & set(allowed)
        ]
        what = "password and no token" if any("token" in settings.access_rules[rule] for rule in asking) else "password"
        return [f"users is not set: no {what} is accepted for {join_names(asking)}"] if asking else []
    if not accounts:
        state = "the user file does not exist yet" if accounts is None else "has no users"
        return [f"{settings.users}: {state}: {'no password is accepted' if elsewhere else 'no user can sign in'}"]
    problems = []
    judged = with_accounts | {scheme.name for scheme in schemes if not scheme.has_bare_names}
    for page in settings.pages:
        missing = [name for name in page.users if not has_issuer(name) and normalize(name) not in accounts]
        if missing and judged.issuperset(page.schemes):
            problems.append(f"{settings.users}: has no {join_names(missing)}, named by the users of page {page.path}")
    absent = [name for name in settings.api.moderators if not has_issuer(name) and normalize(name) not in accounts]
    if absent and with_accounts & set(settings.api.write):
        problems.append(f"{settings.users}: has no {join_names(absent)}, named by [api] moderators")
    for scheme in schemes:
        if settings.uses_scheme(scheme.name):
            problems += scheme.account_problems(accounts, settings.realm)
    if any(account.h_a1 for account in accounts.values()):
        with suppress(OSError):  # it was removed since
            mode = Path(settings.users).stat().st_mode & 0o777
            if mode & 0o077:
                why = "its Digest hashes are equivalent to passwords; set mode 0600"
                problems.append(f"{settings.users} has mode {mode:04o}: {why}")
    return problems
