"""Posts in Redis, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from postd.errors import KeyReusedError, NoSuchPostError, PostChangedError, StoreUnavailableError
from postd.model import Change, ChangeKind, Post, Version
from postd.reactor import IReactor
from postd.store.interface import Once, Page
from postd.store.paging import follow, read_by_pages
from postd.store.redis.database import RedisDatabase
from postd.store.redis.importing import RedisImport
from postd.store.redis.scripts import KEYS, load_script

_ADD = load_script("add_post", writes=True)
_REPLACE = load_script("replace_post", writes=True)
_DELETE = load_script("delete_post", writes=True)
_LIST = load_script("list_posts")
_LIST_CHANGES = load_script("list_changes")


class RedisPosts:
    """Posts in a sorted set, by their ids."""

    def __init__(self, database: RedisDatabase, *, reactor: IReactor) -> None:
        self._database = database
        self._read_command, self._read, self._write = database.read_command, database.read, database.write
        self._reactor = reactor
        self._wanting_version: list[Deferred[Version]] = []

    async def version(self) -> Version:
        # Each reader of the list asks for it: one question for all who do so in one turn of the reactor.
        answer: Deferred[Version] = Deferred()
        if not self._wanting_version:
            self._reactor.callLater(0, self._ask_version)
        self._wanting_version.append(answer)
        return await answer

    def _ask_version(self) -> None:
        wanting, self._wanting_version = self._wanting_version, []

        def tell(version: Version | Failure) -> None:
            for answer in wanting:
                answer.callback(version)

        Deferred.fromCoroutine(self._select_version()).addBoth(tell)

    async def _select_version(self) -> Version:
        return self._version(*await self._read_command("HMGET", KEYS["VERSION"], "revision", "tag"))

    async def list_posts(self, *, after: int = 0, limit: int) -> Page:
        revision, tag, members = await self._read(_LIST, after, limit + 1)
        posts = [_decode(member) for member in members]
        more = len(posts) > limit
        return Page(self._version(revision, tag), posts[:limit] if more else posts, more)

    async def get_post(self, post_id: int) -> Post:
        members = await self._read_command("ZRANGEBYSCORE", KEYS["POSTS"], post_id, post_id)
        if not members:
            raise NoSuchPostError(post_id)
        return Post(*_decode(members[0]))

    async def add_post(self, text: str, *, once: Once | None = None) -> int:
        key = (once.key.hex(), once.request.hex(), repr(once.now), repr(once.expires)) if once else ()
        post_id, revision = await self._write(_ADD, _new_tag(), text, *key)
        if post_id == "reused":
            raise KeyReusedError
        self._database.note_progress(post_id=int(post_id), revision=int(revision))
        return int(post_id)

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        _raise_from(await self._write(_REPLACE, _new_tag(), post_id, text, expected or ""), post_id)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        _raise_from(await self._write(_DELETE, _new_tag(), post_id, expected or ""), post_id)

    async def list_changes(self, *, after: int, limit: int) -> list[Change]:
        latest_text, entries = await self._read(_LIST_CHANGES, after + 1, limit)
        latest = self._revision(latest_text)
        changes = [_decode_change(name, fields) for name, fields in entries]
        return follow(changes, after=after, latest=latest)

    def read_posts(self, *, at_once: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        return read_by_pages(self.list_posts, at_once=at_once)

    async def last_id(self) -> int:
        return int(await self._read_command("GET", KEYS["LAST_ID"]) or 0)

    async def begin_import(self) -> RedisImport:
        return await RedisImport.begin(self._database)

    def _version(self, revision: Any, tag: Any) -> Version:
        return Version(self._revision(revision), tag)

    def _revision(self, text: Any) -> int:
        if text is None:
            why = "the posts are not in this database any more"
            self._database.reconnect(why)
            raise StoreUnavailableError(f"{self._database.description}: {why}")
        self._database.note_progress(revision=int(text))
        return int(text)


def _new_tag() -> str:
    return secrets.token_hex(8)


def _decode(member: str) -> tuple[int, str]:
    post_id, _, text = member.partition(":")
    return int(post_id), text


def _decode_change(name: str, fields: Sequence[str]) -> Change:
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    return Change(int(name.partition("-")[0]), ChangeKind(told["kind"]), int(told["id"]), told.get("post"))


def _raise_from(outcome: str, post_id: int) -> None:
    """Raise what a script says has kept it from changing a post."""
    if outcome == "missing":
        raise NoSuchPostError(post_id)
    if outcome == "changed":
        raise PostChangedError(post_id)
