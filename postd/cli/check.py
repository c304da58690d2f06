"""`postd check`: test settings, user file, store and issuers before a server uses them."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import click

from postd.auth.user_file import Account, load_accounts
from postd.cli.options import pluralize, with_settings
from postd.cli.run_async import global_reactor, run
from postd.cli.with_store import prepare_store
from postd.daemon.log import file_problem
from postd.daemon.schemes import make_schemes
from postd.daemon.settings_checks import (
    account_problems,
    describe_hosts,
    exposure_problem,
    settings_problems,
    spoofing_problem,
)
from postd.errors import (
    ConfigError,
    PostdError,
    StoreMissingError,
    StoreOlderError,
    StoreRefusedError,
    StoreUnavailableError,
    printable,
)
from postd.net.endpoint_strings import is_loopback_only, makes_world_writable_socket, origin_for_browsers
from postd.net.endpoints import NO_RESUMPTION, check_endpoint, expiry_problem, find_certificate, validity
from postd.protect.schemes.interface import Scheme
from postd.protocol.password import weakness
from postd.settings.loading import LoadedSettings, check_page_folders, count_workers
from postd.settings.schema import Settings


@click.command()
@with_settings("store", "users")
def check(*, loaded: LoadedSettings) -> None:
    """Check settings, users, store and issuers.

    Print one line for each check: "ok", or the error. The exit status is 0 only if all checks pass. Nothing is
    changed; the server does not need to run.
    """
    found = 0
    schemes, unusable = _make_schemes(loaded)
    parts = {
        "settings": _lines(chain(unusable, _settings_problems(loaded, schemes)), ""),
        "users": _check_users(loaded.settings, schemes),
        "store": _check_store(loaded),
        "hosts": _check_hosts(loaded),
        "certificate": _check_certificates(loaded),
        "sign_in": _check_redirects(loaded.settings),
    }
    # Issuers last: the other results need no network.
    for what, lines in chain(parts.items(), _check_schemes(schemes)):
        for good, words in lines:
            found += not good
            click.echo(printable(f"{what}: {'ok' if good else ''}{', ' if good and words else ''}{words}"))
    if found:
        raise click.ClickException(f"found {pluralize(found, 'problem')}")


_NETWORK_TIMEOUT_S = 30
"""The limit for all issuers; each fetch has a limit of its own."""

_Lines = Iterator[tuple[bool, str]]
"""The results of a check: for each line whether it is ok, and its text."""


def _lines(problems: Iterable[str], good: str) -> _Lines:
    """Yield the lines of a check: its problems, or that it is good."""
    yield from [(False, problem) for problem in problems] or [(True, good)]


def _make_schemes(loaded: LoadedSettings) -> tuple[list[Scheme], list[str]]:
    """Return the schemes of the settings, and why those of further tables cannot be used."""
    try:
        return make_schemes(loaded), []
    except ConfigError as error:
        return [], [str(error)]


def _settings_problems(loaded: LoadedSettings, schemes: Sequence[Scheme]) -> Iterator[str]:
    for find in (check_page_folders, count_workers):
        try:
            find(loaded)
        except ConfigError as error:
            yield str(error)
    yield from settings_problems(loaded.settings, schemes)
    for key, file in loaded.settings.log.files.items():
        problem = file_problem(file)
        if problem:
            yield f"{loaded.where['log']}.{key}: {file}: {problem}"
    for description in loaded.settings.admin.listen:
        try:
            check_endpoint(description, where=f"{loaded.where['admin']}.listen", now=time.time())
        except ConfigError as error:
            yield str(error)
    yield from _listener_problems(loaded.settings, schemes, loaded.where["listen"])


def _listener_problems(settings: Settings, schemes: Sequence[Scheme], where: str) -> Iterator[str]:
    for description in settings.listen:
        try:
            exposed = check_endpoint(description, where=where, now=time.time())
        except ConfigError as error:
            yield str(error)
            continue
        why = exposure_problem(settings, schemes) if exposed else None
        if makes_world_writable_socket(description):
            why = spoofing_problem(settings, description)
        if why is not None:
            yield f"{where}: {description}: {why}"


def _check_hosts(loaded: LoadedSettings) -> _Lines:
    """Yield the hosts that each listener answers requests for; `_settings_problems` reports invalid listeners."""
    settings = loaded.settings
    for descriptions, admin in ((settings.listen, False), (settings.admin.listen, True)):
        for description in descriptions:
            with suppress(ConfigError):
                check_endpoint(description, where=loaded.where["listen"])
                local = is_loopback_only(description)
                hosts = describe_hosts(settings, local=bool(local), admin=admin)
                if local is None and hosts != (on_loopback := describe_hosts(settings, local=True, admin=admin)):
                    hosts = f"{hosts}; if its socket is on loopback, only for {on_loopback}"
                yield True, f"{description} answers requests for {hosts}"


def _check_redirects(settings: Settings) -> _Lines:
    """Yield the redirect URIs to register at the OpenID providers."""
    origins = [settings.public_url] if settings.public_url else [*map(origin_for_browsers, settings.listen)]
    known = [origin for origin in origins if origin is not None]
    hint = "" if settings.public_url else "; set public_url, so that there is one, whatever address a browser uses"
    for provider in settings.sign_in:
        for origin in known:
            yield True, f"redirect URI to register for {provider.id}: {origin}/login/{provider.id}/callback{hint}"
        if not known:
            yield True, f"redirect URI to register for {provider.id}: ORIGIN/login/{provider.id}/callback{hint}"


def _check_certificates(loaded: LoadedSettings) -> _Lines:
    """Yield the state of the certificate of each listener; `_settings_problems` reports those that cannot be used."""
    now = time.time()
    for where, descriptions in (("listen", loaded.settings.listen), ("admin", loaded.settings.admin.listen)):
        for description in descriptions:
            with suppress(ConfigError):
                certificate = find_certificate(description, loaded.where[where])
                if certificate is None or certificate.not_after <= now:
                    continue
                is_urgent, problem = expiry_problem(certificate, now)
                yield not is_urgent, f"{description}: {problem or validity(certificate)}"
                if not certificate.can_resume:
                    yield True, NO_RESUMPTION


def _check_users(settings: Settings, schemes: Sequence[Scheme]) -> _Lines:
    accounts: dict[str, Account] | None = None
    if settings.users:
        try:
            accounts = load_accounts(settings.users)
        except ConfigError as error:
            yield False, str(error)
            return
    problems = account_problems(settings, schemes, accounts)
    for name, account in (accounts or {}).items():
        if weak := weakness(account.password_hash):
            problems.append(f"the hash of {name} is weak: {weak}; set the password again with `postd user passwd`")
    yield from _lines(problems, pluralize(len(accounts), "user") if accounts else "none are set")


def _check_store(loaded: LoadedSettings) -> _Lines:
    try:
        store = prepare_store(loaded)
    except StoreMissingError as error:
        kind, _, path = loaded.settings.store.partition(":")
        if kind != "sqlite":
            yield True, f"{error.why}; the server creates it"
        elif os.access(Path(path).parent, os.W_OK):
            yield True, f"{loaded.settings.store} does not exist yet; the server creates it"
        else:
            yield False, f"{error.why}, and its folder is not writable"
    except StoreOlderError as error:
        yield True, error.why
    except (StoreRefusedError, StoreUnavailableError) as error:
        yield False, error.why
    except PostdError as error:
        yield False, str(error)
    else:
        yield True, store.description


def _check_schemes(schemes: Sequence[Scheme]) -> Iterator[tuple[str, _Lines]]:
    """Yield the results of the checks that need the network."""
    checks = [check for scheme in schemes if (check := scheme.check()) is not None]

    async def run_all() -> list[tuple[str, Sequence[tuple[bool, str]]]]:
        return [result for check in checks for result in await check(global_reactor())]

    for what, lines in run(run_all, timeout_s=_NETWORK_TIMEOUT_S) if checks else ():
        yield what, iter(lines)
