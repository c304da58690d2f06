"""`postd token`: the personal access tokens of accounts."""

import math
import shlex
import time
from collections.abc import Collection, Iterator
from typing import get_args

import click

from postd.auth.accounts import find_provider_entry
from postd.auth.personal_token import make_personal_token
from postd.auth.user_file import check_name, load_accounts
from postd.cli.options import format_table, format_time, pluralize, with_settings
from postd.cli.owners import load_owners, normalize_owner
from postd.cli.passwords import require_valid
from postd.cli.with_store import use_store
from postd.daemon.schemes import make_providers
from postd.errors import printable
from postd.protocol.bearer import has_issuer
from postd.protocol.label import check_label
from postd.protocol.personal_token import Access, PersonalToken, has_prefix, hash_token
from postd.settings.loading import LoadedSettings
from postd.settings.values import Lifetime
from postd.store.interface import Store


@click.group(no_args_is_help=False)
def token() -> None:
    """Make, list and revoke personal access tokens."""


@token.command("add")
@click.argument("name")
@click.option("--access", type=click.Choice(get_args(Access)), default="read", show_default=True, help="Its access.")
@click.option("--label", default="", metavar="TEXT", help="A text for lists, such as what the token is for.")
@click.option("--expires", metavar="DURATION", help="Its lifetime, such as 30d. [default: token_lifetime]")
@with_settings("store", "users")
def add_token(*, loaded: LoadedSettings, name: str, access: Access, label: str, expires: str | None) -> None:
    """Make a token for a user, and print it: it is stored as a hash only, and never shown again.

    NAME is a user of the user file, or ISSUER#NAME of an OpenID provider. With the access "read" the token permits GET
    and HEAD alone. stdout has the token and nothing else.
    """
    account, entry = _find_account(loaded, name)
    label = require_valid("the label", check_label, label)
    lifetime_s = _choose_lifetime(loaded, expires)
    text, record = make_personal_token(
        account, entry, access=access, label=label, now=time.time(), lifetime_s=lifetime_s
    )
    if not use_store(loaded, lambda store: store.add_token(hash_token(text), record)):
        raise click.ClickException(f"{account!r} has as many tokens as an account may have; revoke one")
    click.echo(text)
    click.echo(f"postd: token {record.id}: {', '.join(filter(None, _describe(record)))}", err=True)
    if not loaded.settings.uses_scheme("token"):
        rule = f'"token" among its schemes, such as [api] {access}'
        click.echo(f"postd: no access rule has {rule}: no token is accepted", err=True)


@token.command("list")
@click.option("--account", metavar="NAME", help="Only the tokens of this user: a name, or ISSUER#NAME.")
@with_settings("store", "users")
def list_tokens(*, loaded: LoadedSettings, account: str | None) -> None:
    """List tokens, the oldest first.

    Each line begins with the id of a token. Times are in UTC. Tokens of removed users are not shown.
    """
    name = None if account is None else normalize_owner(account)
    owners = load_owners(loaded)
    found = use_store(loaded, lambda store: store.list_tokens(name))
    valid = (token for token in found if owners.owns(token.account, token.entry))
    rows = [(token.id, printable(token.account), *_describe(token)) for token in valid]
    click.echo("\n".join(format_table(rows)) if rows else "no tokens")


@token.command("revoke")
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--account", metavar="NAME", help="Revoke all tokens of this user: a name, or ISSUER#NAME.")
@with_settings("store")
def revoke_tokens(*, loaded: LoadedSettings, id_: str | None, account: str | None) -> None:
    """Revoke a token by its id, or all tokens of a user. They are refused at once."""
    if (id_ is None) == (account is None):
        raise click.UsageError("give either the ID of a token or --account NAME")
    if id_ is not None and has_prefix(id_):
        raise click.ClickException("this is a token, not the id of one; `postd token list` shows ids")
    name = None if account is None else normalize_owner(account)

    async def revoke(store: Store) -> int:
        ids: Collection[str]
        ids = [id_] if id_ is not None else [token.id for token in await store.list_tokens(name)]
        return await store.delete_tokens(ids, account=name)

    revoked = use_store(loaded, revoke)
    if id_ is not None and not revoked:
        raise click.ClickException(f"there is no token with the id {id_!r}")
    click.echo(f"{pluralize(revoked, 'token')} revoked")


def _find_account(loaded: LoadedSettings, name: str) -> tuple[str, bytes]:
    """Return the account with a name, and its entry.

    Raises:
        click.ClickException: there is no such account.
        ConfigError: the user file cannot be read.
    """
    file = loaded.settings.users
    if has_issuer(name):
        entry = find_provider_entry(name, [one.policy for one in make_providers(loaded)])
        if entry is None:
            raise click.ClickException(f"{name!r} is no ISSUER#NAME of a provider in [[sign_in]]")
        return name, entry
    name = require_valid("the name", check_name, name)
    if not file:
        raise click.ClickException("users is not set; --users FILE or users in the settings file names the user file")
    account = (load_accounts(file) or {}).get(name)
    if account is None:
        raise click.ClickException(f"{file} has no user {name!r}; postd user add {shlex.quote(name)} adds one")
    return name, account.entry


def _choose_lifetime(loaded: LoadedSettings, given: str | None) -> float:
    """Return the lifetime of a new token in seconds, infinite for none.

    Raises:
        click.ClickException: the given one is no duration, or longer than the settings allow.
    """
    longest = loaded.settings.accounts.token_lifetime_s
    if given is None:
        return longest
    try:
        lifetime = Lifetime.decode(given)
    except ValueError:
        raise click.ClickException(f"--expires: expected {Lifetime.ALLOWED}, got {given!r}") from None
    if lifetime > longest:
        where = loaded.where.get("accounts", "accounts")
        raise click.ClickException(f"--expires: {given or 'no bound'} is longer than {where}.token_lifetime allows")
    return lifetime


def _describe(token: PersonalToken) -> Iterator[str]:
    """Yield the words about a token in lists."""
    yield token.access
    yield f"made {format_time(token.created)}"
    if token.expires == math.inf:
        yield "never expires"
    else:
        yield f"{'expires' if token.expires > time.time() else 'expired'} {format_time(token.expires)}"
    yield f"last used {format_time(token.used)}" if token.used else "never used"
    yield printable(token.label)
