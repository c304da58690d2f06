"""`postd account`: the accounts of the service, and what the store has of each."""

import time
from collections import defaultdict
from collections.abc import Iterator

import click
from msgspec import Struct

from postd.cli.options import format_table, format_time, with_settings
from postd.cli.owners import Owners, load_owners
from postd.cli.with_store import use_store
from postd.errors import StoreMissingError, printable
from postd.protocol.bearer import has_issuer
from postd.protocol.passkey import Passkey
from postd.protocol.personal_token import PersonalToken
from postd.protocol.session import Session
from postd.settings.loading import LoadedSettings
from postd.store.interface import Store


class Records(Struct):
    """What the store has of an account: the numbers of valid records, and their latest use."""

    tokens: int = 0
    passkeys: int = 0
    sessions: int = 0
    seen: float = 0.0


@click.group(no_args_is_help=False)
def account() -> None:
    """List all accounts."""


@account.command("list")
@with_settings("store", "users")
def list_accounts(*, loaded: LoadedSettings) -> None:
    """List the accounts: how each signs in, its tokens, passkeys and sessions.

    Accounts of the user file are first, in its order; those of OpenID providers, ISSUER#NAME, follow if they have any
    of the three. "last seen" is the latest use of one of these, in UTC; the store has no other uses. What has expired,
    or belongs to a user of before, does not count.
    """
    owners = load_owners(loaded)
    try:
        found = use_store(loaded, _read_records)
    except StoreMissingError as error:
        if not owners.accounts:
            raise
        click.echo(f"postd: no tokens, passkeys and sessions are known: {error}", err=True)
        found = [], [], []
    records = count_records(owners, *found)
    names = [*(owners.accounts or ())]
    names += sorted(records.keys() - names)
    rows: list[tuple[str, ...]] = [("account", "signs in by", "tokens", "passkeys", "sessions", "last seen")]
    rows += [(printable(name), *_describe(owners, loaded.settings.realm, name, records[name])) for name in names]
    click.echo("\n".join(format_table(rows)) if names else "no accounts")


async def _read_records(store: Store) -> tuple[list[Session], list[PersonalToken], list[Passkey]]:
    return await store.list_sessions(), await store.list_tokens(), await store.list_passkeys()


def count_records(
    owners: Owners, sessions: list[Session], tokens: list[PersonalToken], passkeys: list[Passkey]
) -> defaultdict[str, Records]:
    """Return the valid records of the accounts that have any."""
    counted, now = defaultdict[str, Records](Records), time.time()
    for session in sessions:
        if session.expires > now and owners.has_begun(session):
            of = counted[session.username]
            of.sessions += 1
            of.seen = max(of.seen, session.seen)
    for token in tokens:
        if token.expires > now and owners.owns(token.account, token.entry):
            of = counted[token.account]
            of.tokens += 1
            of.seen = max(of.seen, token.used)
    for passkey in passkeys:
        if owners.owns(passkey.account, passkey.entry):
            of = counted[passkey.account]
            of.passkeys += 1
            of.seen = max(of.seen, passkey.used)
    return counted


def _describe(owners: Owners, realm: str, name: str, records: Records) -> Iterator[str]:
    """Yield the columns of an account after its name."""
    means = _list_means(owners, realm, name) + (["passkey"] if records.passkeys else [])
    yield ", ".join(means)
    yield from map(str, (records.tokens, records.passkeys, records.sessions))
    yield format_time(records.seen) if records.seen else "unknown"


def _list_means(owners: Owners, realm: str, name: str) -> list[str]:
    """Return how an account signs in, but for passkeys: by the ids of its providers, or by their issuer if the settings
    do not have it.
    """
    if has_issuer(name):
        issuer = name.partition("#")[0]
        return [id_ for id_, one in owners.issuers.items() if one == issuer] or [printable(issuer)]
    account = (owners.accounts or {}).get(name)
    return ["password", "Digest"] if account is not None and account.digest_realm == realm else ["password"]
