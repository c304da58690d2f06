"""Posts in Redis, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import secrets
from collections.abc import AsyncIterator, Sequence

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from postd.errors import KeyReusedError, NoSuchPostError, PostChangedError, StoreUnavailableError
from postd.model import Change, ChangeKind, Post, Version
from postd.reactor import IReactor
from postd.store.base import StorePart, contiguous_changes, proven_changes, read_by_pages
from postd.store.interface import PAGE_CHANGES_MAX, IdempotencyKey, Page
from postd.store.redis.database import RedisDatabase
from postd.store.redis.importing import RedisImport
from postd.store.redis.scripts import KEYS, load_script

_ADD = load_script("add_post", writes=True)
_REPLACE = load_script("replace_post", writes=True)
_DELETE = load_script("delete_post", writes=True)
_LIST = load_script("list_posts")
_LIST_CHANGES = load_script("list_changes")


class RedisPosts(StorePart[RedisDatabase]):
    """Posts in a sorted set, by their ids."""

    def __init__(self, database: RedisDatabase, *, reactor: IReactor) -> None:
        super().__init__(database)
        self._read_command, self._read, self._write = database.read_command, database.read, database.write
        self._reactor = reactor
        self._version_waiters: list[Deferred[Version]] = []

    async def version(self) -> Version:
        # Single flight: each request for the list needs it, and all calls of one reactor iteration share a command.
        result: Deferred[Version] = Deferred()
        if not self._version_waiters:
            self._reactor.callLater(0, self._read_version_once)
        self._version_waiters.append(result)
        return await result

    def _read_version_once(self) -> None:
        waiters, self._version_waiters = self._version_waiters, []

        def fire(version: Version | Failure) -> None:
            for waiter in waiters:
                waiter.callback(version)

        Deferred.fromCoroutine(self._read_version()).addBoth(fire)

    async def _read_version(self) -> Version:
        return self._version(*await self._read_command("HMGET", KEYS["VERSION"], "revision", "tag"))

    async def list_posts(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page:
        known = () if since is None else (since.revision, PAGE_CHANGES_MAX)
        revision, tag, members, entries = await self._read(_LIST, after, limit + 1, *known)
        version = self._version(revision, tag)
        posts = [_decode(member) for member in members]
        more = len(posts) > limit
        changes = None
        if since is not None:
            logged = [(tag, int(post_id), text or None) for tag, post_id, text in entries]
            changes = proven_changes(logged, since, version)
        return Page(version, posts[:limit] if more else posts, more, changes)

    async def get_post(self, post_id: int) -> Post:
        members = await self._read_command("ZRANGEBYSCORE", KEYS["POSTS"], post_id, post_id)
        if not members:
            raise NoSuchPostError(post_id)
        return Post(*_decode(members[0]))

    async def add_post(self, text: str, *, idempotency_key: IdempotencyKey | None = None) -> int:
        key = idempotency_key
        arguments = (key.key.hex(), key.request.hex(), repr(key.now), repr(key.expires)) if key else ()
        post_id, revision = await self._write(_ADD, _new_tag(), text, *arguments)
        if post_id == "reused":
            raise KeyReusedError
        self.database.note_progress(post_id=int(post_id), revision=int(revision))
        return int(post_id)

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        _raise_from(await self._write(_REPLACE, _new_tag(), post_id, text, expected or ""), post_id)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        _raise_from(await self._write(_DELETE, _new_tag(), post_id, expected or ""), post_id)

    async def list_changes(self, *, after: int, limit: int, since: int | None = None) -> list[Change | None]:
        latest_text, entries = await self._read(_LIST_CHANGES, after + 1, limit, "" if since is None else since)
        latest = self._revision(latest_text)
        changes = [(int(entry[0]), _decode_change(*entry)) for entry in entries]
        return contiguous_changes(changes, after=after, latest=latest)

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        return read_by_pages(self.list_posts, batch_size=batch_size)

    async def last_id(self) -> int:
        return int(await self._read_command("GET", KEYS["LAST_ID"]) or 0)

    async def begin_import(self) -> RedisImport:
        return await RedisImport.begin(self.database)

    def _version(self, revision: str | None, tag: str) -> Version:
        return Version(self._revision(revision), tag)

    def _revision(self, text: str | None) -> int:
        if text is None:
            why = "the posts are not in this database any more"
            self.database.reconnect(why)
            raise StoreUnavailableError(f"{self.database.description}: {why}")
        self.database.note_progress(revision=int(text))
        return int(text)


def _new_tag() -> str:
    return secrets.token_hex(8)


def _decode(member: str) -> tuple[int, str]:
    post_id, _, text = member.partition(":")
    return int(post_id), text


def _decode_change(revision: str, kind: str, post_id: str, text: str) -> Change | None:
    return Change(int(revision), ChangeKind(kind), int(post_id), text or None) if kind else None


def _raise_from(outcome: str, post_id: int) -> None:
    """Raise the error for the result of a script that changes a post."""
    if outcome == "missing":
        raise NoSuchPostError(post_id)
    if outcome == "changed":
        raise PostChangedError(post_id)
