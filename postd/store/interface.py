"""What a store does, whichever it is: it keeps posts, what must be remembered of logins, and has a life.

Every method but `prepare` and `stop` may raise `StoreUnavailableError` or one of its subclasses; then a read has no
result, and a write that was not refused with `StoreBusyError` may or may not have happened. A write has been made
durable when its call returns. `now` and all times are seconds since the epoch.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from postd.model import Change, Post, Session, Version

CHANGES_KEPT = 10_000
"""How many of the latest changes a store keeps at the least (the contract asks for 1,000)."""


class Page(Struct, frozen=True):
    """Posts in ascending order of their ids, as they stood at one moment, at `version`.

    `more` tells that posts with larger ids followed.
    """

    version: Version
    posts: list[tuple[int, str]]
    more: bool


KEY_BYTES = 32
"""The length of a service's key."""

NONCE_COUNTS_KEPT_S = 60
"""How long the counts of a nonce are kept after its end: a node whose clock is behind would still take it."""


FailureKeys = tuple[bytes, ...]
"""What an attempt to log in is counted for: different keys."""


class Failures(Struct, frozen=True):
    """What counts for a key at a moment.

    Args:
        count: failed attempts.
        next_expiry: when the first of them is forgotten, in seconds since the epoch; 0 if there are none.
        reserved: attempts that are under way and may fail.
    """

    count: int
    next_expiry: float
    reserved: int = 0


class Reservation(Struct, frozen=True):
    """An attempt that is under way: it counts like a failure until it ends, or expires with the process that made it.

    Args:
        id: text that no other reservation has.
        keys: what the attempt is counted for.
        expires: when it stops to count by itself, in seconds since the epoch.
    """

    id: str
    keys: FailureKeys
    expires: float


class Once(Struct, frozen=True):
    """What a request is known by, so that it stores one post however often it comes.

    Args:
        key: bytes that nobody else uses.
        request: tells this request from others with the same key.
        now: when it came, in seconds since the epoch.
        expires: until when it is remembered, if it stores a post.
    """

    key: bytes
    request: bytes
    now: float
    expires: float


class PostStore(Protocol):
    """Posts, and what has become of them. Ids only ever grow and are never used twice."""

    async def version(self) -> Version:
        """Return the version of the posts as they stand."""

    async def list_posts(self, *, after: int = 0, limit: int) -> Page:
        """Return at most `limit` posts with ids larger than `after`, read at one moment."""

    async def get_post(self, post_id: int) -> Post:
        """Return the post.

        Raises:
            NoSuchPostError: there is none with that id.
        """

    async def add_post(self, text: str, *, once: Once | None = None) -> int:
        """Store a new post and return its id.

        Args:
            text: the post's text.
            once: if given, and a post was stored with its key before, nothing is stored, and that one's id returned.

        Raises:
            KeyReusedError: that was another request.
        """

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        """Give a post another text; the same text again is no change.

        Args:
            post_id: which.
            text: the new text.
            expected: if given, the text that the post must still have.

        Raises:
            NoSuchPostError: there is none with that id.
            PostChangedError: its text is not the one expected.
        """

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        """Remove a post; as `replace_post`."""

    async def list_changes(self, *, after: int, limit: int) -> list[Change]:
        """Return at most `limit` changes that came after revision `after`, oldest first, none left out between them.

        Raises:
            ChangesGoneError: the log does not have the next one any more, or does not go up to that revision.
        """

    def read_posts(self, *, at_once: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        """Yield all posts in ascending order of their ids, at most `at_once` of them together.

        They are as they stood at one moment if the store can do that, else each portion is.
        """

    async def last_id(self) -> int:
        """Return the largest id that was ever given out, 0 if there was none."""

    async def begin_import(self) -> "Import":
        """Return what takes posts that come with their ids."""


class Import(Protocol):
    """Posts on their way into a store, with the ids that they have. None of them is in it before `commit`."""

    async def add(self, posts: Sequence[tuple[int, str]]) -> None:
        """Take posts, in any order; a few hundred to a thousand at once.

        Raises:
            PostExistsError: a post with this id was taken before. The whole import is of no use any more.
        """

    async def commit(
        self, *, skip_existing: bool = False, into_empty: bool = False, last_id: int = 0, revision: int = 0
    ) -> int:
        """Store all that were taken, as one step, and return how many that were. Each is a change of its own.

        Args:
            skip_existing: leave those out whose ids there are posts with, instead of refusing them all.
            into_empty: refuse them all if there is any post.
            last_id: ids that are given out from now on are larger than this, too.
            revision: those of the changes from now on are larger than this, too.

        Raises:
            PostExistsError: there is a post with the id of one of them; nothing was stored.
            StoreNotEmptyError: `into_empty`, and there is a post; nothing was stored.
        """

    async def discard(self) -> None:
        """Forget what was taken and not stored; harmless after `commit`."""


class LoginStore(Protocol):
    """Sessions, nonce counts, failed logins, and keys of the service's own: one for all workers and nodes."""

    async def key(self, name: str) -> bytes:
        """Return `KEY_BYTES` random bytes: for the same name always the same ones."""

    async def use_nonce(self, nonce: bytes, count: int, *, expires: float) -> bool:
        """Note that a nonce was used with a count; False if it has been before.

        Args:
            nonce: what tells it from other nonces.
            count: which use of it this is.
            expires: when the nonce ends, and with it, a little later, what is noted here.
        """

    async def add_session(self, id_hash: bytes, session: Session, *, in_place_of: Collection[bytes] = ()) -> None:
        """Keep a session under a hash of its identifier, and end those that it takes the place of."""

    async def get_session(self, id_hash: bytes) -> Session | None:
        """Return a session, None if there is none; one that has expired may or may not still be there."""

    async def list_sessions(self) -> list[Session]:
        """Return all sessions, oldest first; some may have expired."""

    async def renew_session(self, id_hash: bytes, *, seen: float, expires: float) -> None:
        """Note that a session is in use; one that has ended since stays ended."""

    async def delete_sessions(self, id_hashes: Collection[bytes]) -> int:
        """End sessions; return how many of them there were."""

    async def delete_sessions_of(self, fingerprints: Mapping[str, bytes | None]) -> int:
        """End the sessions of users; return how many there were.

        Args:
            fingerprints: for each user's name, the fingerprint whose sessions stay; None for no such.
        """

    async def delete_all_sessions(self) -> int:
        """End all sessions; return how many there were."""

    async def count_failures(self, keys: FailureKeys, *, now: float) -> Mapping[bytes, Failures]:
        """Return the failures that count now, for each key that has any."""

    async def reserve_attempt(
        self, reservation: Reservation, *, allowed: Sequence[int], now: float
    ) -> Mapping[bytes, Failures] | None:
        """Make a reservation if each of its keys has room for one more, as one step for all workers and nodes.

        Args:
            reservation: what is to be made.
            allowed: how many failures and reservations together each key has room for, in the order of the keys.
            now: the time of the attempt.

        Returns:
            None if the reservation was made; else what `count_failures` returns.
        """

    async def release_attempt(self, reservation: Reservation) -> None:
        """Take a reservation back, once; one that has expired may be gone already."""

    async def add_failure(
        self, keys: FailureKeys, *, now: float, expires: float, reservation: Reservation | None = None
    ) -> Mapping[bytes, Failures]:
        """Note one failure for each key, until `expires`, in the place of a reservation if the attempt has one.

        Returns:
            What `count_failures` returns after that, as one step.
        """

    async def forget_failures(self, key: bytes) -> None:
        """Forget the failures noted for a key."""

    async def purge_expired(self, *, now: float) -> None:
        """Remove what has expired."""


class OperationObserver(Protocol):
    """Is called with each operation of a store, for metrics."""

    def __call__(self, operation: Literal["read", "write"], duration_s: float, /, *, failed: bool) -> None:
        """Note an operation.

        Args:
            operation: its kind.
            duration_s: in seconds, waits included.
            failed: whether it raised `StoreUnavailableError`; other errors are results.
        """


def ignore_operation(_operation: str, _duration_s: float, /, *, failed: bool) -> None:
    """Note nothing."""


class Store(PostStore, LoginStore, Protocol):
    """All that the service must remember, and the life of the place where it is kept."""

    observer: OperationObserver

    @property
    def description(self) -> str:
        """The store for the log and the messages: its kind and place, without secrets."""

    def prepare(self, *, create: bool = True) -> None:
        """Try the store before anything is started, and create it if it is not there. Holds nothing open.

        Blocks; to be called once, before the reactor runs and before the process forks.

        Args:
            create: False to refuse a store that is not there.

        Raises:
            StoreRefusedError: it will never serve us as it is.
            StoreUnavailableError: it is away or locked just now.
        """

    async def start(self) -> None:
        """Open the store; returns when it answers, however long that takes.

        Raises:
            StoreRefusedError: it was away when it was tried, and now turns out to be of no use.
        """

    async def stop(self) -> None:
        """Refuse new writes, finish those that wait, close."""
