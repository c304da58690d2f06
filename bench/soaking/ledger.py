"""What the posts must be: what was acknowledged, and what is on its way."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

HIDDEN_TEXT = "smuggled"
"""The text of posts that no server may ever store."""


class Ledger:
    """What clients of ours have had acknowledged. A post is written by one of them at a time.

    Args:
        texts: what is there at the start, by id.
    """

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = dict(texts)
        self.added = self.replaced = self.deleted = 0
        self.newest = max(texts)
        self.shrinking = False
        """Whether there are more posts deleted than added for now."""
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
        """Return a text that no other post has had."""
        return f"Soaked {next(self._numbers):08}: grüße, 世界 🚀, in as many words as most posts have."

    @contextmanager
    def adding(self, text: str) -> Iterator[None]:
        """Post a text in the block."""
        self._coming.add(text)
        try:
            yield
        finally:
            self._coming.discard(text)

    def add(self, post_id: int, text: str) -> str:
        """Note a post that was acknowledged; return what is wrong with its id, or nothing."""
        wrong = f"the id {post_id} was given out twice" if post_id in self._places or post_id in self._gone else ""
        self._places[post_id] = len(self._ids)
        self._ids.append(post_id)
        self.texts[post_id] = text
        self._changed[post_id] = time.monotonic()
        self.added += 1
        self.newest = max(self.newest, post_id)
        return wrong

    @contextmanager
    def changing(self) -> Iterator[int]:
        """Change a post in the block that nobody else is changing."""
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
        """Return what is wrong with what a reader was told of a post (None: it is not there), or nothing.

        Args:
            post_id: the post.
            text: its text.
            asked_at: when it was asked for; what has changed since may be told either way.
        """
        if post_id in self._busy or self._changed.get(post_id, 0.0) >= asked_at:
            return ""
        known = self.texts.get(post_id)
        if known == text or (known is None and text in self._coming):
            return ""
        return f"post {post_id} is {text!r} and not {known!r}"

    def problem_with_list(self, posts: Sequence[Any], *, after: int, asked_at: float) -> str:
        """Return what is wrong with a list, or the first page of one from an id on, or nothing."""
        for post in posts:
            if post["id"] <= after:
                return f"post {post['id']} comes after {after}"
            after = post["id"]
            problem = self.problem_with(after, post["post"], asked_at=asked_at)
            if problem:
                return problem
        return ""

    def problems_at_the_end(self, posts: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with all the posts there are when nobody writes any more: a promise, and an example."""
        there = dict(posts)
        for post_id, text in self.texts.items():
            if there.get(post_id) != text:
                yield "what was acknowledged is there", f"post {post_id} is {there.get(post_id)!r} and not {text!r}"
        for post_id, text in there.items():
            if post_id in self._gone:
                yield "what was deleted is gone", f"post {post_id}: {text!r}"
            elif HIDDEN_TEXT in text:
                yield "what is hidden in a request is not executed", f"post {post_id}: {text!r}"
            elif post_id not in self.texts:
                yield "nothing is there that nobody was told of", f"post {post_id}: {text!r}"
