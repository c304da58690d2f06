"""`postd check`: can a server with these settings do what they ask for?"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click

from postd.auth.userfile import Account, decode_users, read_user_file
from postd.cli.shared import counted, with_settings
from postd.cli.storing import try_store
from postd.config import LoadedSettings, Settings, check_folders
from postd.errors import ConfigError, PostdError, StoreMissingError, StoreRefusedError, StoreUnavailableError, printable
from postd.listeners import check_endpoint
from postd.protocol.password import weakness
from postd.reactor import IReactor
from postd.review import exposure_problem, find_problems


@click.command()
@with_settings("store", "users")
def check(*, loaded: LoadedSettings) -> None:
    """Check settings, user file and store: a line each, "ok" or what is wrong."""
    found = 0
    parts = {"settings": _check_settings(loaded), "users": _check_users(loaded.settings), "store": _check_store(loaded)}
    for what, lines in parts.items():
        for good, words in lines:
            found += not good
            click.echo(printable(f"{what}: {'ok' if good else ''}{', ' if good and words else ''}{words}"))
    if found:
        raise click.ClickException("1 thing is wrong" if found == 1 else f"{found} things are wrong")


_Lines = Iterator[tuple[bool, str]]
"""For each line: whether all is well, and the words."""


def _check_settings(loaded: LoadedSettings) -> _Lines:
    problems = list(_settings_problems(loaded))
    yield from ((False, problem) for problem in problems)
    if not problems:
        yield True, ""


def _settings_problems(loaded: LoadedSettings) -> Iterator[str]:
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    try:
        check_folders(loaded)
    except ConfigError as error:
        yield str(error)
    where = loaded.where["listen"]
    for description in loaded.settings.listen:
        try:
            exposed = check_endpoint(description, where=where, reactor=cast("IReactor", reactor))
        except ConfigError as error:
            yield str(error)
        else:
            problem = exposure_problem(loaded.settings) if exposed else None
            if problem is not None:
                yield f"{where}: {description}: {problem}"


def _check_users(settings: Settings) -> _Lines:
    accounts: dict[str, Account] | None = None
    if settings.users:
        try:
            content = read_user_file(Path(settings.users))
            accounts = None if content is None else decode_users(content, settings.users)
        except ConfigError as error:
            yield False, str(error)
            return
    problems = find_problems(settings, accounts)
    for name, account in (accounts or {}).items():
        if weak := weakness(account.password_hash):
            problems.append(f"the hash of {name} is weak: {weak}; `postd user passwd` makes a better one")
    for problem in problems:
        yield False, problem
    if not problems:
        yield True, counted(len(accounts), "user") if accounts else "none are set"


def _check_store(loaded: LoadedSettings) -> _Lines:
    try:
        store = try_store(loaded)
    except StoreMissingError as error:
        folder = Path(loaded.settings.store.partition(":")[2]).parent
        if os.access(folder, os.W_OK):
            yield True, f"{loaded.settings.store} is not there yet; the server makes it"
        else:
            yield False, f"{error.why}, and its folder is not writable"
    except (StoreRefusedError, StoreUnavailableError) as error:
        yield False, error.why
    except PostdError as error:
        yield False, str(error)
    else:
        yield True, store.description
