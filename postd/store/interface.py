"""What a store does, whichever it is."""

from typing import Protocol

from msgspec import Struct

from postd.model import Change, Post, Version

CHANGES_KEPT = 10_000
"""How many of the latest changes a store keeps at the least (the contract asks for 1,000)."""


class Page(Struct, frozen=True):
    """Posts in ascending order of their ids, as they stood at one moment, at `version`.

    `more` tells that posts with larger ids followed.
    """

    version: Version
    posts: list[tuple[int, str]]
    more: bool


class PostStore(Protocol):
    """Posts, and what has become of them.

    A write has been made durable when its call returns. Ids only ever grow and are never used twice. Every method
    may raise `StoreUnavailableError` or one of its subclasses; then a read has no result, and a write that was not
    refused with `StoreBusyError` may or may not have happened.
    """

    @property
    def description(self) -> str:
        """The store for the log and the messages: its kind and place, without secrets."""

    def prepare(self) -> None:
        """Try the store before anything is started, and create it if it is not there. Holds nothing open.

        Blocks; to be called once, before the reactor runs and before the process forks.

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

    async def version(self) -> Version:
        """Return the version of the posts as they stand."""

    async def list_posts(self, *, after: int = 0, limit: int) -> Page:
        """Return at most `limit` posts with ids larger than `after`, read at one moment."""

    async def get_post(self, post_id: int) -> Post:
        """Return the post.

        Raises:
            NoSuchPostError: there is none with that id.
        """

    async def add_post(self, text: str) -> int:
        """Store a new post and return its id."""

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
        """Return at most `limit` changes that came after revision `after`, oldest first.

        Raises:
            ChangesGoneError: the log does not reach back that far, or not up to that revision.
        """
