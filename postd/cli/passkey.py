"""`postd passkey`: the passkeys of accounts."""

import click

from postd.cli.options import format_table, format_time, with_settings
from postd.cli.owners import load_owners, normalize_owner
from postd.cli.with_store import use_store
from postd.errors import printable
from postd.protocol.passkey import Passkey
from postd.settings.loading import LoadedSettings


@click.group(no_args_is_help=False)
def passkey() -> None:
    """List and remove passkeys. Users add them at /account."""


@passkey.command("list")
@click.option("--account", metavar="NAME", help="Only the passkeys of this user: a name, or ISSUER#NAME.")
@with_settings("store", "users")
def list_passkeys(*, loaded: LoadedSettings, account: str | None) -> None:
    """List passkeys, the oldest first.

    Each line begins with the id of a passkey. Times are in UTC. Passkeys of removed users are not shown.
    """
    name = None if account is None else normalize_owner(account)
    owners = load_owners(loaded)
    found = use_store(loaded, lambda store: store.list_passkeys(name))
    rows = [_describe(one) for one in found if owners.owns(one.account, one.entry)]
    click.echo("\n".join(format_table(rows)) if rows else "no passkeys")


@passkey.command("remove")
@click.argument("id_", metavar="ID")
@with_settings("store")
def remove_passkey(*, loaded: LoadedSettings, id_: str) -> None:
    """Remove a passkey by its id. It is refused at once; sessions that it began go on."""
    if not use_store(loaded, lambda store: store.delete_passkeys([id_])):
        raise click.ClickException(f"there is no passkey with the id {id_!r}")
    click.echo("1 passkey removed")


def _describe(one: Passkey) -> tuple[str, ...]:
    backup = "backed up" if one.backed_up else "not backed up" if one.backup_eligible else "on one device"
    used = f"last used {format_time(one.used)}" if one.used else "never used"
    return one.id, printable(one.account), f"made {format_time(one.created)}", used, backup, printable(one.label)
