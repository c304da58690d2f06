"""`postd session`: the live sessions, begun by the form or at an OpenID provider."""

import time

import click

from postd.cli.options import format_table, format_time, pluralize, with_settings
from postd.cli.owners import load_owners, normalize_owner
from postd.cli.with_store import use_store
from postd.errors import printable
from postd.settings.loading import LoadedSettings


@click.group(no_args_is_help=False)
def session() -> None:
    """List and revoke login sessions."""


@session.command("list")
@with_settings("store", "users")
def list_sessions(*, loaded: LoadedSettings) -> None:
    """List the live sessions.

    The oldest session is first; times are in UTC.
    """
    now = time.time()
    owners = load_owners(loaded)
    found = use_store(loaded, lambda store: store.list_sessions())
    live = [session for session in found if session.expires > now and owners.has_begun(session)]
    heading = ("user", "signed in by", "since", "last seen", "ends unless used", "ends at the latest")
    binds = any(session.bound for session in live)
    rows: list[tuple[str, ...]] = [(*heading, "bound") if binds else heading]
    for session in live:
        times = session.created, session.seen, session.expires, session.ends
        means = "passkey" if session.scheme == "passkey" else session.provider or "password"
        bound = ("to a device" if session.bound else "no",) if binds else ()
        rows.append((printable(session.username), means, *map(format_time, times), *bound))
    click.echo("\n".join(format_table(rows)) if live else "no sessions")


@session.command("revoke")
@click.option("--user", "username", metavar="NAME", help="End the sessions of this user: a name, or ISSUER#NAME.")
@click.option("--all", "everybody", is_flag=True, help="End all sessions.")
@with_settings("store")
def revoke_sessions(*, loaded: LoadedSettings, username: str | None, everybody: bool) -> None:
    """End sessions; users must sign in again."""
    if (username is None) != everybody:
        raise click.UsageError("give either --user NAME or --all")
    name = None if username is None else normalize_owner(username)
    ended = use_store(
        loaded, lambda store: store.delete_all_sessions() if name is None else store.delete_sessions_of({name: None})
    )
    click.echo(f"{pluralize(ended, 'session')} ended")
