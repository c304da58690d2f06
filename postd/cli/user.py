"""`postd user`: the accounts of the user file."""

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from postd.auth.password_reset import LIFETIME_S, PAGE, hash_secret, make_secret
from postd.auth.user_file import (
    Account,
    check_name,
    decode_users,
    make_account,
    remove_account,
)
from postd.auth.user_file_editing import Edited, edit_user_file, load_user_file, put_password
from postd.cli.account import count_records
from postd.cli.options import format_table, pluralize, with_settings
from postd.cli.owners import Owners, make_owners, normalize_owner
from postd.cli.passwords import ask_password, password_option, read_password, require_valid
from postd.cli.with_store import prepare_store, use_store, use_stores, within_limit
from postd.errors import (
    ConfigError,
    NoSuchPostError,
    NotAuthorError,
    PostdError,
    StoreMissingError,
    StoreOlderError,
    printable,
)
from postd.protocol.bearer import has_issuer
from postd.protocol.digest import HASHES
from postd.protocol.password import hash_kind, normalize, weakness
from postd.protocol.password_reset import PasswordReset
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings
from postd.store.interface import Store

_BATCH_POSTS = 500


@click.group(no_args_is_help=False)
def user() -> None:
    """Manage the user file."""


@user.command("add")
@click.argument("name")
@password_option
@with_settings("store", "users")
def add_user(*, loaded: LoadedSettings, name: str, password_stdin: bool) -> None:
    """Add a user.

    The user file is created, with mode 0600, if it does not exist. If posts have the name as their author already, they
    are posts of the new account, and a line says so.
    """

    def check_absent(name: str, present: Account | None, _: Path) -> None:
        if present is not None:
            raise click.ClickException(f"user {name!r} exists already; {_passwd(name)} sets a new password")

    _set_password(loaded.settings, name, password_stdin=password_stdin, check=check_absent, done="added")
    _report_posts(loaded, name)


@user.command("passwd")
@click.argument("name")
@password_option
@with_settings("users")
def set_password(*, loaded: LoadedSettings, name: str, password_stdin: bool) -> None:
    """Set a user's password."""
    _set_password(loaded.settings, name, password_stdin=password_stdin, check=_check_present, done="password set")


@user.command("remove")
@click.argument("name")
@click.option("--posts", "with_posts", is_flag=True, help="Remove all posts of this author, too.")
@with_settings("store", "users")
def remove_user(*, loaded: LoadedSettings, name: str, with_posts: bool) -> None:
    """Remove a user, and end the user's sessions, tokens and passkeys.

    NAME is a user of the user file, or ISSUER#NAME of an OpenID provider: what the store has of that user ends, but
    the provider may still sign the user in. With --posts the posts of a user who is removed already are removed, too.
    A running server refuses the user within two seconds.
    """
    remove = _end_provider_account if has_issuer(name) else _remove_account
    remove(loaded, normalize_owner(name), with_posts=with_posts)


def _end_provider_account(loaded: LoadedSettings, name: str, *, with_posts: bool) -> None:
    store, owners = prepare_store(loaded), make_owners(loaded, None)
    ended, posts = use_stores([store], lambda: _clear_store(store, owners, name, lambda: None, with_posts=with_posts))
    if ended:
        click.echo(f"{printable(name)}: {ended} ended")
    if with_posts:
        _report_removed_posts(name, posts, store)
    elif not ended:
        raise click.ClickException(f"{name!r} has no session, token or passkey in {store.description}")


def _remove_account(loaded: LoadedSettings, name: str, *, with_posts: bool) -> None:
    file = _user_file(loaded.settings)
    accounts = decode_users(load_user_file(file) or b"", str(file))
    if not with_posts:
        _check_present(name, accounts.get(name), file)
    owners, edits, ended = make_owners(loaded, accounts), list[Edited](), ""

    def remove(content: bytes, accounts: Mapping[str, Account]) -> bytes:
        _check_present(name, accounts.get(name), file)
        return remove_account(content, name)

    def remove_entry() -> None:
        if name in accounts and not edits:
            edits.append(edit_user_file(file, remove))

    try:
        store = prepare_store(loaded)
        ended, posts = use_stores(
            [store], lambda: _clear_store(store, owners, name, remove_entry, with_posts=with_posts)
        )
    except (PostdError, click.ClickException) as error:
        if with_posts:
            raise
        remove_entry()  # fails again if that was the error
        what = f"sessions, tokens and passkeys of {printable(name)}"
        click.echo(f"postd: {what} end by themselves, with the entry, and may still be in the store: {error}", err=True)
    finally:  # after Ctrl-C, too
        for edited in edits:
            click.echo(f"{printable(name)}: removed{f'; {ended} ended' if ended else ''}")
            _report_edit(file, edited)
    if with_posts:
        _report_removed_posts(name, posts, store)


def _report_removed_posts(name: str, number: int, store: Store) -> None:
    click.echo(f"{printable(name)}: {pluralize(number, 'post')} removed from {store.description}")


async def _clear_store(
    store: Store, owners: Owners, account: str, remove_entry: Callable[[], None], *, with_posts: bool
) -> tuple[str, int]:
    """Remove the entry of an account, end what the store has of it, and remove its posts if asked.

    Returns:
        words about what has ended, empty if nothing has, and the number of posts removed.
    """
    # Before the entry is removed: then a running server deletes the same.
    ended = await within_limit(store, _describe_records(store, owners, account))
    remove_entry()
    await within_limit(store, _end_all(store, account))
    return ended, await _remove_posts(store, account) if with_posts else 0


async def _describe_records(store: Store, owners: Owners, account: str) -> str:
    """Return words about the valid sessions, tokens and passkeys of an account, empty if it has none."""
    sessions = [*(await store.list_sessions_of(account)).values()]
    tokens, passkeys = await store.list_tokens(account), await store.list_passkeys(account)
    valid = count_records(owners, sessions, tokens, passkeys)[account]
    numbers = {"session": valid.sessions, "token": valid.tokens, "passkey": valid.passkeys}
    *others, last = [pluralize(number, kind) for kind, number in numbers.items() if number] or [""]
    return f"{', '.join(others)} and {last}" if others else last


async def _end_all(store: Store, account: str) -> None:
    """End the sessions, tokens, passkeys and resets of an account."""
    await store.delete_sessions_of({account: None})
    await store.delete_credentials_of({account: None})


async def _remove_posts(store: Store, author: str) -> int:
    """Remove the posts of an author; return their number."""
    removed = 0

    async def remove(post_id: int) -> None:
        nonlocal removed
        with suppress(NoSuchPostError, NotAuthorError):  # others have removed it
            await store.delete_post(post_id, expected_author=author)
            removed += 1

    async for ids in store.read_ids_of(author, batch_size=_BATCH_POSTS):
        for outcome in await DeferredList([Deferred.fromCoroutine(remove(n)) for n in ids], consumeErrors=True):
            if isinstance(outcome[1], Failure):
                outcome[1].raiseException()
    return removed


def _report_posts(loaded: LoadedSettings, name: str) -> None:
    """Say so if posts have a name as their author. A store that does not exist has none, nor has an older one."""

    async def has_posts(store: Store) -> bool:
        async for ids in store.read_ids_of(normalize(name), batch_size=_BATCH_POSTS):
            if ids:
                return True
        return False

    if loaded.settings.store == "memory:":
        return
    try:
        is_author = use_store(loaded, has_posts)
    except (StoreMissingError, StoreOlderError):
        return
    except PostdError as error:
        click.echo(f"postd: whether posts have the author {printable(name)} is not known: {error}", err=True)
        return
    if is_author:
        remove = f"postd user remove {printable(shlex.quote(name))} --posts"
        click.echo(f"postd: posts have the author {printable(name)} already; `{remove}` removes them", err=True)


@user.command("reset")
@click.argument("name")
@with_settings("store", "users")
def reset_password(*, loaded: LoadedSettings, name: str) -> None:
    """Print a link by which a user sets a new password.

    It is good once, for an hour; it takes the place of an earlier one. The user's sessions, tokens and passkeys end by
    the new password. It needs the settings public_url and [accounts] change_password.
    """
    settings = loaded.settings
    if not settings.accounts.change_password:
        raise ConfigError("[accounts] change_password", "must be true, so that the server accepts the link")
    if not settings.public_url:
        raise ConfigError("public_url", "must be set: the link begins with it")
    file = _user_file(settings)
    name = require_valid("the name", check_name, name)
    account = decode_users(load_user_file(file) or b"", str(file)).get(name)
    _check_present(name, account, file)
    assert account is not None
    secret, expires = make_secret(), time.time() + LIFETIME_S
    reset = PasswordReset(name, account.fingerprint, expires)
    use_store(loaded, lambda store: store.add_password_reset(hash_secret(secret), reset))
    click.echo(f"{settings.public_url}/{PAGE}?secret={secret}")


@user.command("list")
@with_settings("users")
def list_users(*, loaded: LoadedSettings) -> None:
    """List the users.

    Print the kind of each password hash, and the realm for which Digest is set up.
    """
    settings = loaded.settings
    file = _user_file(settings)
    content = load_user_file(file)
    accounts = decode_users(content or b"", str(file)).values()
    rows = [(printable(account.name), _hash_words(account), _digest_words(account, settings)) for account in accounts]
    missing = "" if content is not None else f"; {printable(str(file))} does not exist yet"
    click.echo("\n".join([f'{pluralize(len(rows), "user")}, realm "{settings.realm}"{missing}', *format_table(rows)]))


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
    check: Callable[[str, Account | None, Path], None],
    done: str,
) -> None:
    file = _user_file(settings)
    name = require_valid("the name", check_name, name)
    # Before the password is asked for; the check under the lock decides.
    check(name, decode_users(load_user_file(file) or b"", str(file)).get(name), file)
    password = read_password() if password_stdin else ask_password(name, twice=True)
    try:
        account = make_account(name, password, settings.realm)
    except ValueError as error:
        raise click.ClickException(str(error)) from None

    change = partial(put_password, account=account, check=lambda present: check(name, present, file))
    _edit_file(file, change, f'{printable(name)}: {done}; Digest works in the realm "{settings.realm}"')


def _user_file(settings: Settings) -> Path:
    if not settings.users:
        raise ConfigError("no user file", "give --users FILE, or --config FILE with a file that has the setting users")
    return Path(settings.users)


def _check_present(name: str, present: Account | None, file: Path) -> None:
    if present is None:
        missing = "" if file.exists() else f"; {printable(str(file))} does not exist yet"
        raise click.ClickException(f"user {name!r} does not exist{missing}")


def _edit_file(file: Path, change: Callable[[bytes, Mapping[str, Account]], bytes], done: str) -> None:
    edited = edit_user_file(file, change)
    click.echo(done)
    _report_edit(file, edited)


def _report_edit(file: Path, edited: Edited) -> None:
    """Print the side effects of an edit."""
    if edited.created:
        click.echo(f"{printable(str(file))}: created with mode 0600")
    if edited.was_mode is not None:
        was = f"mode changed from {edited.was_mode:04o} to 0600: only the owner can read it"
        click.echo(f"postd: {printable(str(file))} {was}", err=True)
