"""`postd list`, `add`, `update`, `delete`, `watch`: the client of a server's post API."""

import functools
import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

import click

from postd.cli.options import pluralize
from postd.cli.passwords import ask_password, password_option, read_password
from postd.cli.post_lines import write_all
from postd.cli.run_async import global_reactor, run
from postd.client import (
    Auth,
    Basic,
    BearerFile,
    Change,
    ClientCredentials,
    Digest,
    DPoP,
    FormLogin,
    Post,
    PostClient,
    ProblemError,
    Reset,
    load_dpop_key,
)
from postd.client.auth import check_encrypted
from postd.client.posts import check_server_url
from postd.errors import ConfigError, printable
from postd.model import POST_ID_MAX
from postd.reactor import Work

_TEXT_MAX_BYTES = 64 * 1024
"""The longest text that is read from standard input: the server's limit is lower."""

_PAGE = 1000

_POST_ID = click.IntRange(1, POST_ID_MAX)
_NAMED: Mapping[str, type[Basic | Digest | FormLogin]] = {"basic": Basic, "digest": Digest, "login": FormLogin}


def _check_url(_: object, __: object, url: str) -> str:
    try:
        return check_server_url(url)
    except ConfigError as error:
        raise click.BadParameter(error.why) from None


_OPTIONS = (
    click.option(
        "--url",
        default="http://127.0.0.1:8080",
        show_default=True,
        metavar="URL",
        callback=_check_url,
        help="The server.",
    ),
    click.option("--basic", metavar="USER", help="Authenticate with Basic."),
    click.option("--digest", metavar="USER", help="Authenticate with Digest."),
    click.option("--login", metavar="USER", help="Sign in with the login form; sign out at the end."),
    password_option,
    click.option("--bearer-file", metavar="FILE", help="Send the access token in the first line of FILE."),
    click.option(
        "--client-credentials",
        metavar="ISSUER",
        help="Get an access token from ISSUER (OAuth client credentials grant).",
    ),
    click.option("--client-id", metavar="ID", help="The client id at the issuer."),
    click.option("--client-secret-file", metavar="FILE", help="The client secret is the first line of FILE."),
    click.option("--scope", metavar="WORDS", help="The scopes to request.  [default: the issuer's]"),
    click.option("--resource", metavar="URL", help="The resource to request (RFC 8707).  [default: the issuer's]"),
    click.option(
        "--dpop-key", metavar="FILE", help="Prove possession of the key in FILE, PEM or JWK (DPoP, RFC 9449)."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: one object per line."),
)


class _Client:
    """The server, the credentials and the output format of a command."""

    def __init__(self, url: str, auth: Auth | None, *, as_json: bool) -> None:
        self.as_json = as_json
        self._url = url
        self._auth = auth

    def run(self, work: Callable[[PostClient], Work[None]]) -> None:
        """Run `work` with a client."""

        async def use() -> None:
            async with PostClient(global_reactor(), self._url, self._auth) as posts:
                await work(posts)

        run(use)

    def line(self, words: str, members: Mapping[str, object]) -> str:
        """Return a line of output: text that is safe for a terminal, or JSON in ASCII."""
        return json.dumps(members) if self.as_json else printable(words)

    async def print(self, *lines: str) -> None:
        """Print lines without buffering, at the pace of their reader."""
        if sys.stdout is None:
            return
        encoding = sys.stdout.encoding or "utf-8"
        text = "".join(f"{line}\n" for line in lines)
        await write_all(sys.stdout.fileno(), text.encode(encoding, "backslashreplace"))


def _with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all client commands to a command, which gets them as `server`."""

    @functools.wraps(command)
    def with_options(*, url: str, as_json: bool, **arguments: Any) -> None:
        names = [*_NAMED, "password_stdin", "bearer_file", *_CREDENTIALS, "dpop_key"]
        given = {name: value for name in names if (value := arguments.pop(name)) not in {None, False}}
        command(server=_Client(url, _make_auth(given, url), as_json=as_json), **arguments)

    decorated: Callable[..., None] = with_options
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_CREDENTIALS = ("client_credentials", "client_id", "client_secret_file", "scope", "resource")


def _make_auth(given: dict[str, Any], url: str) -> Auth | None:
    """Return the credentials that the options name.

    Raises:
        click.UsageError: the options contradict each other.
        ConfigError: the password would be sent in clear text to `url`.
    """
    methods = [name for name in (*_NAMED, "bearer_file", "client_credentials") if name in given]
    if len(methods) > 1:
        raise click.UsageError(f"give one of {' and '.join(map(_option, methods))}")
    method = methods[0] if methods else ""
    if "password_stdin" in given and method not in _NAMED:
        raise click.UsageError("--password-stdin goes with --basic, --digest or --login")
    for name in _CREDENTIALS[1:]:
        if name in given and method != "client_credentials":
            raise click.UsageError(f"{_option(name)} goes with --client-credentials")
    if "dpop_key" in given and method not in {"bearer_file", "client_credentials"}:
        raise click.UsageError("--dpop-key goes with --bearer-file or --client-credentials")
    if method in _NAMED:
        user = given[method]
        check_encrypted(url, _NAMED[method])  # before the password is asked for
        return _NAMED[method](user, read_password() if "password_stdin" in given else ask_password(user))
    if method:
        source = _make_token_source(given)
        return DPoP(source, load_dpop_key(given["dpop_key"])) if "dpop_key" in given else source
    return None


def _make_token_source(given: dict[str, Any]) -> BearerFile | ClientCredentials:
    if "bearer_file" in given:
        return BearerFile(given["bearer_file"])
    for name in _CREDENTIALS[1:3]:
        if name not in given:
            raise click.UsageError(f"--client-credentials needs {_option(name)}")
    issuer, client_id, secret_file, scope, resource = (given.get(name, "") for name in _CREDENTIALS)
    return ClientCredentials(issuer, client_id, secret_file, scope, resource)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_meta_option = click.option("--meta", is_flag=True, help="Print times and authors, too.")


def _describe(post: Post | Change, *, meta: bool) -> tuple[str, Mapping[str, object]]:
    """Return the time and the author of a post as words, and its details as members of an object, with `meta` alone."""
    if not meta:
        return "", {}
    created, updated = _format(post.created), _format(post.updated)
    members = {"created": created, "updated": updated, "author": post.author}
    return f"{updated or '-'}  {post.author or '-'}  ", members


def _format(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@click.command("list")
@_meta_option
@_with_server
def list_posts(*, server: _Client, meta: bool) -> None:
    """List all posts.

    Print one post per line in ascending order of id; control characters are escaped. With --meta the time of the last
    change and the author stand before the text.
    """

    async def work(posts: PostClient) -> None:
        lines = []
        async for post in posts.list(page=_PAGE, meta=meta):
            words, members = _describe(post, meta=meta)
            lines.append(server.line(f"{post.id}  {words}{post.post}", {"id": post.id, "post": post.post, **members}))
            if len(lines) == _PAGE:
                await server.print(*lines)
                lines.clear()
        await server.print(*lines)

    server.run(work)


@click.command("add")
@click.argument("text")
@_with_server
def add_post(*, server: _Client, text: str) -> None:
    """Add a post.

    TEXT is the text of the post; "-" reads it from stdin and removes one trailing line feed. A request that is sent
    again after a broken connection stores the post only once.
    """
    content = _read_text(text)

    async def work(posts: PostClient) -> None:
        post_id = await posts.add(content)
        await server.print(server.line(f"added {post_id}", {"id": post_id}))

    server.run(work)


@click.command("update")
@click.argument("post_id", metavar="ID", type=_POST_ID)
@click.argument("text")
@_with_server
def update_post(*, server: _Client, post_id: int, text: str) -> None:
    """Replace the text of a post.

    TEXT is the new text; "-" reads it from stdin and removes one trailing line feed.
    """
    content = _read_text(text)

    async def work(posts: PostClient) -> None:
        await posts.update(post_id, content)
        await server.print(server.line(f"updated {post_id}", {"id": post_id}))

    server.run(work)


@click.command("delete")
@click.argument("post_id", metavar="ID", type=_POST_ID, required=False)
@click.option("--author", metavar="NAME", help="Delete all posts of an author: an account, or ISSUER#NAME of a token.")
@_with_server
def delete_post(*, server: _Client, post_id: int | None, author: str | None) -> None:
    """Delete a post, or all posts of an author."""
    if (author is None) == (post_id is None):
        raise click.UsageError("give an ID, or --author NAME")

    async def work(posts: PostClient) -> None:
        if post_id is not None:
            await posts.delete(post_id)
            await server.print(server.line(f"deleted {post_id}", {"id": post_id}))
            return
        deleted, refused = await _delete_posts_of(author, posts)
        if refused:
            raise click.ClickException(f"{pluralize(deleted, 'post')} deleted; the server refuses to delete {refused}")
        await server.print(server.line(f"{pluralize(deleted, 'post')} deleted", {"deleted": deleted}))

    server.run(work)


async def _delete_posts_of(author: str | None, posts: PostClient) -> tuple[int, int]:
    """Delete the posts of an author; return how many were deleted, and how many the server refuses to delete."""
    deleted = refused = 0
    async for post in posts.list(page=_PAGE, meta=True):
        if post.author == author:
            try:
                await posts.delete(post.id)
                deleted += 1
            except ProblemError as error:
                if error.status == HTTPStatus.FORBIDDEN:
                    refused += 1
                elif error.status != HTTPStatus.NOT_FOUND:  # deleted meanwhile
                    raise
    return deleted, refused


@click.command("watch")
@_meta_option
@_with_server
def watch_posts(*, server: _Client, meta: bool) -> None:
    """Print changes as they happen, until Ctrl-C.

    A broken connection is opened again, and the changes since then are printed. "reset" means that the server no longer
    has some of them: list the posts again.
    """

    def report_wait(why: str, wait_s: float) -> None:
        click.echo(f"postd: {printable(' '.join(why.split()))}; trying again in {wait_s:.1f} s", err=True)

    async def work(posts: PostClient) -> None:
        async with posts.watch(on_wait=report_wait, meta=meta) as changes:
            async for change in changes:
                await server.print(_change_line(server, change, meta=meta))

    server.run(work)


def _change_line(server: _Client, change: Change | Reset, *, meta: bool) -> str:
    if isinstance(change, Reset):
        return server.line("reset", {"event": "reset", "revision": change.revision})
    members: dict[str, object] = {"event": change.kind.value, "revision": change.revision, "id": change.id}
    if change.post is None:
        return server.line(f"{change.kind} {change.id}", members)
    words, details = _describe(change, meta=meta)
    return server.line(f"{change.kind} {change.id}  {words}{change.post}", {**members, "post": change.post, **details})


def _read_text(text: str) -> str:
    if text != "-":
        return text
    if sys.stdin is None:
        raise click.ClickException("there is no standard input to read the text from")
    content = sys.stdin.buffer.read(_TEXT_MAX_BYTES + 1)
    if len(content) > _TEXT_MAX_BYTES:
        raise click.ClickException(f"the text on the standard input has more than {_TEXT_MAX_BYTES // 1024} KiB")
    try:
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise click.ClickException("the text on the standard input is not UTF-8") from None
