"""`postd export`, `import`, `copy`, `backup`: transfer posts between stores and files."""

import codecs
import io
import os
import secrets
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

import click
import msgspec

from postd.cli.options import pluralize, with_settings
from postd.cli.post_lines import CSV_HEAD, decode_post, encode_csv, encode_posts, read_lines, write_all
from postd.cli.run_async import global_reactor
from postd.cli.with_store import configured_store, create_store, prepare_store, use_stores
from postd.errors import PostExistsError, StoreNotEmptyError, StoreRefusedError, StoreUnavailableError, printable
from postd.model import PostDetails, Version
from postd.settings.loading import LoadedSettings, load_settings
from postd.store.base import revision_of_copy
from postd.store.interface import Import, Store
from postd.store.sqlite.store import SqliteStore
from postd.store.sqlite.upgrade_copy import sync

_BATCH_POSTS = 500
"""Posts in a batch."""


@click.command("export")
@click.argument("file", required=False, default="-")
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True, help="The format."
)
@click.option(
    "--safe-for-spreadsheets",
    "is_safe",
    is_flag=True,
    help="With csv: put ' before texts that a spreadsheet would run as formulas.",
)
@with_settings("store")
def export_posts(*, loaded: LoadedSettings, file: str, kind: str, is_safe: bool) -> None:
    """Export all posts, with their times and authors.

    As JSON Lines, a line is {"id":1,"post":"some text","created":"2026-11-28T09:30:00.250Z","updated":"…",
    "author":"alice"}, without what is unknown; as CSV, the first line has the names of the columns. Lines are in
    ascending order of id. FILE must not exist, and is created with mode 0600; without FILE, or with "-", posts are
    written to stdout. Servers may keep running: the export of an SQLite store is a snapshot.
    """
    if is_safe and kind != "csv":
        raise click.UsageError("--safe-for-spreadsheets goes with --format csv")
    head, encode = (CSV_HEAD, partial(encode_csv, is_safe=is_safe)) if kind == "csv" else (b"", encode_posts)
    if file == "-":
        if sys.stdout is None:
            raise click.ClickException("there is no standard output to write to")
        # A progress bar would mix with the posts on a terminal.
        _export(prepare_store(loaded), sys.stdout.fileno(), head, encode, shown=not sys.stdout.isatty())
        return
    with _new_file(Path(file)) as made:
        store = prepare_store(loaded)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            exported = _export(store, descriptor, head, encode)
        finally:
            os.close(descriptor)
    click.echo(f"{pluralize(exported, 'post')} exported to {printable(file)}")


def _export(
    store: Store, descriptor: int, head: bytes, encode: Callable[[Iterable[PostDetails]], bytes], *, shown: bool = True
) -> int:
    async def work() -> int:
        exported = 0
        await write_all(descriptor, head)
        with _progress("exporting", await store.last_id(), shown=shown) as advance_to:
            async for posts in store.read_posts(batch_size=_BATCH_POSTS):
                await write_all(descriptor, encode(posts))
                exported += len(posts)
                advance_to(posts[-1].id)
        return exported

    return use_stores([store], work)


@click.command("import")
@click.argument("file", required=False, default="-")
@click.option("--skip-existing", is_flag=True, help="Skip posts with ids that exist already. [default: fail]")
@with_settings("store")
def import_posts(*, loaded: LoadedSettings, file: str, skip_existing: bool) -> None:
    """Import posts from JSON Lines.

    FILE has the format of `postd export`, JSON Lines; without FILE, or with "-", posts are read from stdin. They keep
    their ids, times and authors, and get none that FILE does not have. Either all posts are stored or none: an invalid
    line and an id that exists already are errors. The store is created if it does not exist. Servers may keep running.
    """
    with _open_input(file) as source:
        name = "standard input" if file == "-" else printable(file)
        store = prepare_store(loaded, create=True)

        async def work() -> tuple[int, int]:
            async with _begin_import(store) as pending:
                given = await _import_lines(pending, source, name)
                try:
                    return given, await pending.commit(skip_existing=skip_existing)
                except PostExistsError as error:
                    why = f"a post with id {error.post_id} exists already"
                    raise _not_imported(f"{name}: {why} (--skip-existing skips such posts)") from None

        given, stored = use_stores([store], work)
    skipped = f"; {given - stored} skipped because their ids exist already" if skip_existing else ""
    click.echo(f"{pluralize(stored, 'post')} imported{skipped}")


async def _import_lines(pending: Import, source: BinaryIO, name: str) -> int:
    """Add the posts of a file to a pending import; return their number."""
    status = os.fstat(source.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    given = read = 0
    with _progress("importing", size) as advance_to:
        async for first, lines in read_lines(source.fileno()):
            posts, numbers = [], []
            for number, written in enumerate(lines, first):
                line = written if number > 1 else written.removeprefix(codecs.BOM_UTF8)
                if line and not line.isspace():
                    try:
                        posts.append(decode_post(line))
                    except ValueError as error:
                        raise _not_imported(f"{name}: line {number}: {error}") from None
                    numbers.append(number)
            for start in range(0, len(posts), _BATCH_POSTS):
                try:
                    await pending.add(posts[start : start + _BATCH_POSTS])
                except PostExistsError as error:
                    again = max(n for n, post in zip(numbers, posts, strict=True) if post.id == error.post_id)
                    why = f"{name}: line {again}: id {error.post_id} is on an earlier line already"
                    raise _not_imported(why) from None
            given += len(posts)
            read += sum(map(len, lines)) + len(lines)
            advance_to(read)
    return given


def _open_input(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        if sys.stdin is None:
            raise click.ClickException("there is no standard input to read posts from")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb", buffering=0)
    except OSError as error:
        raise click.ClickException(f"{file}: it cannot be read: {error.strerror}") from None


def _not_imported(why: str) -> click.ClickException:
    return click.ClickException(f"{why}; nothing was imported")


@click.command("copy")
@click.option("--to", "target_url", metavar="URL", required=True, help="The target store: empty, or created.")
@with_settings("store")
def copy_posts(*, loaded: LoadedSettings, target_url: str) -> None:
    """Copy all posts to an empty store.

    Ids and the next id are kept: this is how to move from SQLite to Redis. Stop the servers of the store first: if a
    post is added or changed during the copy, nothing is copied. Sessions are not copied; users must sign in again.
    """
    options = load_settings(None, {"store": target_url}, Path.cwd())
    target_loaded = msgspec.structs.replace(options, where={**options.where, "store": "--to"})
    source, target = prepare_store(loaded), configured_store(target_loaded)
    if source.description == target.description or _same_file(loaded.settings.store, target_loaded.settings.store):
        raise click.ClickException(f"--to: {target.description} is the source of the copy; give another store")
    create_store(target)

    async def work() -> int:
        before = await source.version()
        copied = await _copy_posts(source, target, unchanged_since=before)
        missing = "the copy is incomplete; stop the source's servers and copy again, to an empty store"
        await _check_unchanged(source, before, missing)
        return copied

    try:
        copied = use_stores([source, target], work)
    except StoreNotEmptyError:
        raise click.ClickException(f"{target.description}: the store has posts; copy to an empty store") from None
    click.echo(f"{pluralize(copied, 'post')} copied to {target.description}; users must sign in again")


def _same_file(url: str, other: str) -> bool:
    paths = [path for kind, _, path in (url.partition(":"), other.partition(":")) if kind == "sqlite"]
    return len(paths) == 2 and all(map(os.path.exists, paths)) and Path(paths[0]).samefile(paths[1])


@click.command("backup")
@click.argument("file")
@with_settings("store")
def backup_posts(*, loaded: LoadedSettings, file: str) -> None:
    """Back up an SQLite store to FILE.

    FILE is an SQLite store with a snapshot of all posts and the next id, and can be used as a store at once. It must
    not exist, and is created with mode 0600. Servers may keep running. Sessions, keys and failure counts are not
    copied; users must sign in again.
    """
    if file == "-":
        raise click.UsageError("a backup is written to a file, not to stdout; give a file name")
    source = configured_store(loaded)
    if not isinstance(source, SqliteStore):
        why = "`postd backup` needs an SQLite store; use `postd export` for any store, or back up the files of Redis"
        raise click.ClickException(f"{source.description}: {why}")
    with _new_file(Path(file)) as made:
        source.prepare(create=False)
        target = SqliteStore(str(made), reactor=global_reactor())

        async def work() -> int:
            copied = await _copy_posts(source, target)
            await target.mark_as_backup()
            return copied

        try:
            target.prepare()
            saved = use_stores([source, target], work)
        except (StoreRefusedError, StoreUnavailableError) as error:
            # The message names the temporary file.
            raise click.ClickException(error.why.replace(str(made), file)) from None
        if any(name.exists() for name in _journal_files(made)):
            raise click.ClickException(f"{file}: write incomplete; check the free disk space")
    click.echo(f"{pluralize(saved, 'post')} saved in {printable(file)}")


async def _check_unchanged(source: Store, before: Version, words: str) -> None:
    if await source.version() != before:
        raise click.ClickException(f"{source.description} has changed during the copy; {words}")


async def _copy_posts(source: Store, target: Store, *, unchanged_since: Version | None = None) -> int:
    """Copy all posts of a store to an empty one; return their number.

    The target continues with the next id, and with revisions that the source has not used. If `unchanged_since` is
    given, nothing is committed unless the source still has that version.

    Raises:
        StoreNotEmptyError: the target has posts.
    """
    if (await target.list_posts(limit=1)).posts:  # an early error; the commit checks again
        raise StoreNotEmptyError
    async with _begin_import(target) as pending:
        with _progress("reading", await source.last_id()) as advance_to:
            async for posts in source.read_posts(batch_size=_BATCH_POSTS):
                await pending.add(posts)
                advance_to(posts[-1].id)
        # Read after the posts, so that neither is older than the posts.
        last_id, version, collection = await source.last_id(), await source.version(), await source.collection()
        if unchanged_since is not None:
            await _check_unchanged(
                source, unchanged_since, "nothing was copied; stop the source's servers and copy again"
            )
        revision = revision_of_copy(version.revision)
        return await pending.commit(into_empty=True, last_id=last_id, revision=revision, collection=collection)


@asynccontextmanager
async def _begin_import(store: Store) -> AsyncIterator[Import]:
    """Yield a pending import, which is discarded at the end unless it was committed."""
    pending = await store.begin_import()
    try:
        yield pending
    finally:
        with suppress(StoreUnavailableError):  # the first error is reported, not this one
            await pending.discard()


@contextmanager
def _progress(what: str, length: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal; yield a function that moves it to a position.

    `length` is the final position; without it, positions are shown in KiB. Nothing is shown unless `shown`.
    """
    terminal = shown and sys.stderr is not None and sys.stderr.isatty()
    file: TextIO = sys.stderr if terminal else io.StringIO()
    if length:
        with click.progressbar(length=length, label=what, file=file) as bar:
            yield lambda position: bar.update(position - bar.pos)
        return
    line_end = ""

    def show(position: int) -> None:
        nonlocal line_end
        file.write(f"\r{what}  {position // 1024} KiB")
        file.flush()
        line_end = "\n" if position else ""

    try:
        yield show
    finally:
        file.write(line_end)


@contextmanager
def _new_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file made there becomes `file` on success.

    After an error it is removed, with SQLite's files beside it.

    Raises:
        click.ClickException: the file exists, its folder does not exist or is not writable, or writing fails.
    """
    if os.path.lexists(file):
        raise _file_exists(file)
    if not file.parent.is_dir():
        raise click.ClickException(f"{file}: the folder does not exist")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.ClickException(f"{file}: the folder is not writable")
    made = file.parent / f".postd-{secrets.token_hex(8)}"
    try:
        yield made
        sync(made)
        os.link(made, file)  # a rename would replace a file that was created since
    except FileExistsError:
        raise _file_exists(file) from None
    except OSError as error:
        # Not str(error): it names the temporary file.
        raise click.ClickException(f"{file}: it cannot be written: {error.strerror}") from None
    finally:
        for name in (made, *_journal_files(made)):
            name.unlink(missing_ok=True)
    sync(file.parent)


def _journal_files(database: Path) -> list[Path]:
    """Return the paths of the files that SQLite keeps beside a database."""
    return [database.with_name(f"{database.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")]


def _file_exists(file: Path) -> click.ClickException:
    return click.ClickException(f"{file}: the file exists already and is not overwritten; give a new name")
