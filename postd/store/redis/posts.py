"""Posts in Redis, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import astuple

from postd.errors import (
    KeyReusedError,
    NoSuchPostError,
    NotAuthorError,
    PostChangedError,
    PostdError,
    StoreUnavailableError,
)
from postd.model import POST_ID_MAX, Change, ChangeKind, Post, PostCollection, PostDetails, Version
from postd.reactor import Work
from postd.store.base import (
    StorePart,
    contiguous_changes,
    proven_changes,
    read_by_pages,
    read_ids_by_pages,
    to_milliseconds,
)
from postd.store.interface import PAGE_CHANGES_MAX, IdempotencyKey, Page
from postd.store.redis.database import RedisDatabase
from postd.store.redis.details import decode_details, encode_details
from postd.store.redis.importing import RedisImport
from postd.store.redis.scripts import KEYS, load_script
from postd.store.redis.shared_call import SharedCall

_ADD = load_script("add_post", writes=True)
_REPLACE = load_script("replace_post", writes=True)
_DELETE = load_script("delete_post", writes=True)
_LIST = load_script("list_posts")
_LIST_DETAILS = load_script("list_details")
_GET_DETAILS = load_script("get_details")
_LIST_CHANGES = load_script("list_changes")


class RedisPosts(StorePart[RedisDatabase]):
    """Posts in a sorted set, by their ids."""

    def __init__(self, database: RedisDatabase) -> None:
        super().__init__(database)
        self._read_command, self._read, self._write = database.read_command, database.read, database.write
        self.watch_changes = database.watch_changes
        self._version = SharedCall(self._read_version, reactor=database.reactor)

    def version(self) -> Work[Version]:
        return self._version.run(None)  # each request for the list needs it

    async def _read_version(self, _: list[None]) -> Version:
        return self._make_version(*await self._read_command("HMGET", KEYS["VERSION"], "revision", "tag"))

    async def list_posts(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[tuple[int, str]]:
        revision, tag, members, entries = await self._read(_LIST, after, limit + 1, *_asked_changes(since))
        version = self._make_version(revision, tag)
        posts = [_decode(member) for member in members]
        more = len(posts) > limit
        changes = None
        if since is not None:
            logged = [(tag, int(post_id), (int(post_id), text) if text else None) for tag, post_id, text, _ in entries]
            changes = proven_changes(logged, since, version)
        return Page(version, posts[:limit] if more else posts, more, changes)

    async def list_details(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[PostDetails]:
        return await self._list_details("first", after, limit, since)

    async def list_latest(self, *, before: int = POST_ID_MAX + 1, limit: int) -> Page[PostDetails]:
        page = await self._list_details("last", before, limit, None)
        return Page(page.version, page.posts[::-1], page.more)

    async def _list_details(self, which: str, bound: int, limit: int, since: Version | None) -> Page[PostDetails]:
        asked = which, bound, limit + 1, *_asked_changes(since)
        revision, tag, members, detailed, entries = await self._read(_LIST_DETAILS, *asked)
        version = self._make_version(revision, tag)
        details = dict(map(_decode, detailed))
        posts = [decode_details(post_id, text, details.get(post_id, "")) for post_id, text in map(_decode, members)]
        changes = None
        if since is not None:
            logged = [
                (tag, int(post_id), decode_details(int(post_id), text, found) if text else None)
                for tag, post_id, text, found in entries
            ]
            changes = proven_changes(logged, since, version)
        return Page(version, posts[:limit], len(posts) > limit, changes)

    async def get_post(self, post_id: int) -> Post:
        members = await self._read_command("ZRANGEBYSCORE", KEYS["POSTS"], post_id, post_id)
        if not members:
            raise NoSuchPostError(post_id)
        return Post(*_decode(members[0]))

    async def get_details(self, post_id: int) -> PostDetails:
        member, details = await self._read(_GET_DETAILS, post_id)
        if not member:
            raise NoSuchPostError(post_id)
        return decode_details(*_decode(member), details)

    async def add_post(
        self,
        text: str,
        *,
        author: str | None = None,
        now: float | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        key, created = idempotency_key, to_milliseconds(now)
        details = encode_details(created, created, author)
        arguments = (key.key.hex(), key.request.hex(), repr(key.now), repr(key.expires)) if key else ()
        post_id, revision = await self._write(_ADD, _new_tag(), text, details, *arguments)
        if post_id == "reused":
            raise KeyReusedError
        self.database.note_progress(post_id=int(post_id), revision=int(revision))
        self.database.note_change()
        return int(post_id)

    async def replace_post(
        self,
        post_id: int,
        text: str,
        *,
        now: float | None = None,
        expected: str | None = None,
        expected_author: str | None = None,
    ) -> None:
        moment = "" if now is None else to_milliseconds(now)
        conditions = _conditions(expected, expected_author)
        _raise_from(await self._write(_REPLACE, _new_tag(), post_id, text, moment, *conditions), post_id)
        self.database.note_change()

    async def delete_post(
        self, post_id: int, *, expected: str | None = None, expected_author: str | None = None
    ) -> None:
        conditions = _conditions(expected, expected_author)
        _raise_from(await self._write(_DELETE, _new_tag(), post_id, *conditions), post_id)
        self.database.note_change()

    async def list_changes(self, *, after: int, limit: int, since: int | None = None) -> list[Change | None]:
        asked = after + 1, limit, "" if since is None else since
        latest_text, entries, login_changes = await self._read(_LIST_CHANGES, *asked)
        self.database.note_login_changes(login_changes)
        latest = self._revision(latest_text)
        changes = [(int(entry[0]), _decode_change(*entry)) for entry in entries]
        return contiguous_changes(changes, after=after, latest=latest)

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[PostDetails]]:
        return read_by_pages(self.list_details, batch_size=batch_size)

    def read_ids_of(self, author: str, *, batch_size: int) -> AsyncIterator[Sequence[int]]:
        return read_ids_by_pages(self.list_details, author, batch_size=batch_size)

    async def last_id(self) -> int:
        return int(await self._read_command("GET", KEYS["LAST_ID"]) or 0)

    async def collection(self) -> PostCollection:
        collection_id, began = await self._read_command("HMGET", KEYS["COLLECTION"], "id", "began")
        if collection_id is None:  # the server was full
            raise StoreUnavailableError(f"{self.database.description}: has no {KEYS['COLLECTION']}")
        return PostCollection(collection_id, int(began))

    async def begin_import(self) -> RedisImport:
        return await RedisImport.begin(self.database)

    def _make_version(self, revision: str | None, tag: str) -> Version:
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


def _asked_changes(since: Version | None) -> tuple[int, ...]:
    """Return the arguments of a script that ask for the changes since a version."""
    return () if since is None else (since.revision, PAGE_CHANGES_MAX)


def _conditions(expected: str | None, expected_author: str | None) -> tuple[str, str, str]:
    """Return the arguments of a script that changes a post only under conditions."""
    return expected or "", "" if expected_author is None else "1", expected_author or ""


def _decode_change(revision: str, kind: str, post_id: str, text: str, details: str) -> Change | None:
    if not kind:
        return None
    if not text:
        return Change(int(revision), ChangeKind(kind), int(post_id), None)
    return Change(int(revision), ChangeKind(kind), *astuple(decode_details(int(post_id), text, details)))


_OUTCOMES: Mapping[str, Callable[[int], PostdError]] = {
    "missing": NoSuchPostError,
    "not author": NotAuthorError,
    "changed": PostChangedError,
}


def _raise_from(outcome: str, post_id: int) -> None:
    """Raise the error for the result of a script that changes a post."""
    if outcome in _OUTCOMES:
        raise _OUTCOMES[outcome](post_id)
