"""`postd user`: the accounts of the user file."""

import getpass
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from postd.auth.useredit import edit_user_file
from postd.auth.userfile import (
    Account,
    check_name,
    decode_users,
    make_account,
    read_user_file,
    remove_account,
    set_account,
)
from postd.cli.shared import counted, table, with_settings
from postd.config import LoadedSettings, Settings
from postd.errors import ConfigError, printable
from postd.protocol.digest import HASHES
from postd.protocol.password import PASSWORD_MAX_CHARS, check_password, hash_kind, normalize, weakness


@click.group(no_args_is_help=False)
def user() -> None:
    """Keep the user file: who may sign in."""


password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from the first line of the standard input, in UTF-8."
)


@user.command("add")
@click.argument("name")
@password_option
@with_settings("users")
def add_user(*, loaded: LoadedSettings, name: str, password_stdin: bool) -> None:
    """Add the account NAME, and make the user file if there is none."""

    def check_absent(name: str, accounts: Mapping[str, Account]) -> None:
        if name in accounts:
            raise click.ClickException(f"there is a user {name!r} already; {_passwd(name)} sets a new password")

    _set_password(loaded.settings, name, password_stdin=password_stdin, check=check_absent, done="added")


@user.command("passwd")
@click.argument("name")
@password_option
@with_settings("users")
def set_password(*, loaded: LoadedSettings, name: str, password_stdin: bool) -> None:
    """Set a new password for the account NAME."""
    _set_password(loaded.settings, name, password_stdin=password_stdin, check=_check_present, done="password set")


@user.command("remove")
@click.argument("name")
@with_settings("users")
def remove_user(*, loaded: LoadedSettings, name: str) -> None:
    """Remove the account NAME."""
    file = _user_file(loaded.settings)
    name = _checked("the name", check_name, name)

    def remove(content: bytes, accounts: Mapping[str, Account]) -> bytes:
        _check_present(name, accounts)
        return remove_account(content, name)

    _edit(file, remove, f"{printable(name)}: removed")


@user.command("list")
@with_settings("users")
def list_users(*, loaded: LoadedSettings) -> None:
    """List the accounts: the kind of each one's hash, and the realm that Digest works in."""
    settings = loaded.settings
    file = _user_file(settings)
    content = read_user_file(file)
    accounts = decode_users(content or b"", str(file)).values()
    rows = [(printable(account.name), _hash_words(account), _digest_words(account, settings)) for account in accounts]
    missing = "" if content is not None else f"; {printable(str(file))} is not there yet"
    click.echo("\n".join([f'{counted(len(rows), "user")}, realm "{settings.realm}"{missing}', *table(rows)]))


def _hash_words(account: Account) -> str:
    weak = weakness(account.password_hash)
    return hash_kind(account.password_hash) + (f", weak: {weak}" if weak else "")


def _digest_words(account: Account, settings: Settings) -> str:
    if account.digest_realm is None:
        return f"no Digest ({_passwd(account.name)})"
    if account.digest_realm != settings.realm:
        return f'Digest in the realm "{account.digest_realm}" only ({_passwd(account.name)})'
    if missing := [algorithm for algorithm in HASHES if algorithm not in account.h_a1]:
        return f'Digest in the realm "{account.digest_realm}", not with {", ".join(missing)} ({_passwd(account.name)})'
    return f'Digest in the realm "{account.digest_realm}"'


def _passwd(name: str) -> str:
    return f"postd user passwd {printable(shlex.quote(name))}"


def _set_password(
    settings: Settings,
    name: str,
    *,
    password_stdin: bool,
    check: Callable[[str, Mapping[str, Account]], None],
    done: str,
) -> None:
    file = _user_file(settings)
    name = _checked("the name", check_name, name)
    # Nobody is asked for a password in vain; what counts is the look under the lock.
    check(name, decode_users(read_user_file(file) or b"", str(file)))
    password = _read_password() if password_stdin else _ask_password(name)
    try:
        account = make_account(name, password, settings.realm)
    except ValueError as error:
        raise click.ClickException(str(error)) from None

    def change(content: bytes, accounts: Mapping[str, Account]) -> bytes:
        check(name, accounts)
        return set_account(content, account)

    _edit(file, change, f'{printable(name)}: {done}; Digest works in the realm "{settings.realm}"')


def _user_file(settings: Settings) -> Path:
    if not settings.users:
        raise ConfigError("no user file", "give --users FILE, or --config FILE with a file that has the setting users")
    return Path(settings.users)


def _checked(what: str, check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        raise click.ClickException(f"{what} {error}") from None


def _check_present(name: str, accounts: Mapping[str, Account]) -> None:
    if name not in accounts:
        raise click.ClickException(f"there is no user {name!r}")


def _read_password() -> str:
    """Return the first line of the standard input without its end; what follows is not looked at."""
    if sys.stdin is None:
        raise click.ClickException("there is no standard input to read the password from")
    line_max_bytes = 4 * PASSWORD_MAX_CHARS
    line = sys.stdin.buffer.readline(line_max_bytes + len(b"\r\n"))
    if line.endswith(b"\n"):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
    # Cut short, it may end within a character.
    text = line.decode(errors="replace" if len(line) > line_max_bytes else "surrogateescape")
    return _checked("the password", check_password, text)


def _ask_password(name: str) -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.ClickException("there is no terminal to ask for the password; give --password-stdin to read it")
    try:
        password = _checked("the password", check_password, getpass.getpass(f"Password for {printable(name)}: "))
        again = getpass.getpass("The same again: ")
    except UnicodeDecodeError:
        raise click.ClickException("the password is not text in the encoding of this terminal") from None
    if normalize(again) != password:
        raise click.ClickException("the two passwords are not the same; nothing was changed")
    return password


def _edit(file: Path, change: Callable[[bytes, Mapping[str, Account]], bytes], done: str) -> None:
    edited = edit_user_file(file, change)
    click.echo(done)
    if edited.created:
        click.echo(f"{printable(str(file))}: made, with mode 0600")
    if edited.was_mode is not None:
        was = f"had mode {edited.was_mode:04o} and has 0600 now: only its owner can read it"
        click.echo(f"postd: {printable(str(file))} {was}", err=True)
