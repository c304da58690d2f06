"""The expected posts: acknowledged writes, and writes in progress."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

HIDDEN_TEXT = "smuggled"
"""The text of the hidden requests, which must not be stored."""


class Ledger:
    """The record of acknowledged writes. Each post is written by one client at a time.

    Args:
        texts: the initial posts, by id.
    """

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = dict(texts)
        self.added = self.replaced = self.deleted = 0
        self.newest = max(texts)
        self.shrinking = False
        """Whether more posts are deleted than added at present."""
        self._ids = list(texts)
        self._places = {post_id: place for place, post_id in enumerate(self._ids)}
        self._gone: set[int] = set()
        self._busy: set[int] = set()
        self._changed: dict[int, float] = {}
        self._coming: set[str] = set()
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._ids)

    def any_id(self) -> int:
        return random.choice(self._ids)

    def new_text(self) -> str:
        """Return a unique text."""
        return f"Soaked {next(self._numbers):08}: grüße, 世界 🚀, in as many words as most posts have."

    @contextmanager
    def adding(self, text: str) -> Iterator[None]:
        """A context in which a post with this text is added."""
        self._coming.add(text)
        try:
            yield
        finally:
            self._coming.discard(text)

    def add(self, post_id: int, text: str) -> str:
        """Record an acknowledged post; return an error if its id is not new, else an empty text."""
        wrong = f"post id {post_id} was assigned twice" if post_id in self._places or post_id in self._gone else ""
        self._places[post_id] = len(self._ids)
        self._ids.append(post_id)
        self.texts[post_id] = text
        self._changed[post_id] = time.monotonic()
        self.added += 1
        self.newest = max(self.newest, post_id)
        return wrong

    @contextmanager
    def changing(self) -> Iterator[int]:
        """A context in which a random post is changed, by no other client."""
        post_id = self.any_id()
        while post_id in self._busy:
            post_id = self.any_id()
        self._busy.add(post_id)
        try:
            yield post_id
        finally:
            self._busy.discard(post_id)
            self._changed[post_id] = time.monotonic()

    def replace(self, post_id: int, text: str) -> None:
        self.texts[post_id] = text
        self.replaced += 1

    def delete(self, post_id: int) -> None:
        del self.texts[post_id]
        self._gone.add(post_id)
        place = self._places.pop(post_id)
        last = self._ids.pop()
        if last != post_id:
            self._ids[place], self._places[last] = last, place
        self.deleted += 1

    def problem_with(self, post_id: int, text: str | None, *, asked_at: float) -> str:
        """Compare a response about a post with the record; return the difference, or an empty text.

        Args:
            post_id: the id of the post.
            text: its text in the response, None if it does not exist.
            asked_at: when the request was sent; for a post changed since then, either text is right.
        """
        if post_id in self._busy or self._changed.get(post_id, 0.0) >= asked_at:
            return ""
        known = self.texts.get(post_id)
        if known == text or (known is None and text in self._coming):
            return ""
        return f"post {post_id}: expected {known!r}, got {text!r}"

    def problem_with_list(self, posts: Sequence[Any], *, after: int, asked_at: float) -> str:
        """Compare a list, or a page after an id, with the record; return the first difference, or an empty text."""
        for post in posts:
            if post["id"] <= after:
                return f"post {post['id']} comes after {after}"
            after = post["id"]
            problem = self.problem_with(after, post["post"], asked_at=asked_at)
            if problem:
                return problem
        return ""

    def problems_at_the_end(self, posts: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str]]:
        """Compare all posts with the record after the last write; yield each failed check with an example."""
        there = dict(posts)
        for post_id, text in self.texts.items():
            found = there.get(post_id)
            if found != text:
                yield "acknowledged writes are stored", f"post {post_id}: expected {text!r}, found {found!r}"
        for post_id, text in there.items():
            if post_id in self._gone:
                yield "deleted posts are gone", f"post {post_id}: {text!r}"
            elif HIDDEN_TEXT in text:
                yield "no hidden request is executed", f"post {post_id}: {text!r}"
            elif post_id not in self.texts:
                yield "all stored posts were acknowledged", f"post {post_id}: {text!r}"
