"""The expected content of the store at the end: acknowledged writes, and writes whose outcome is unknown."""

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count


class Ledger:
    """The posts of a run. Each initial post is replaced by at most one client at a time.

    Args:
        texts: the initial posts, by id.
    """

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = dict(texts)
        self.replaceable = deque(texts)
        """The ids of the initial posts that no client is replacing."""
        self.added: dict[int, str] = {}
        """Acknowledged new posts, by id."""
        self.replaced = 0
        self._unsure_texts: set[str] = set()
        self._unsure: dict[int, set[str]] = defaultdict(set)
        self._numbers = count(1)

    def new_text(self) -> str:
        """Return a unique text."""
        return f"Operated {next(self._numbers):08}: grüße, 世界 🚀, in as many words as most posts have."

    def add(self, post_id: int, text: str) -> str:
        """Record an acknowledged post; return an error if its id is not new, else an empty text."""
        wrong = f"post id {post_id} was assigned twice" if post_id in self.added or post_id in self.texts else ""
        self.added[post_id] = text
        return wrong

    def replace(self, post_id: int, text: str) -> None:
        self.texts[post_id] = text
        self._unsure.pop(post_id, None)
        self.replaced += 1

    def doubt_add(self, text: str) -> None:
        """Record a post that may or may not be stored, since there was no response."""
        self._unsure_texts.add(text)

    def doubt_replace(self, post_id: int, text: str) -> None:
        self._unsure[post_id].add(text)

    def problems(self, posts: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
        """Compare all posts in the store with the record; yield each failed check with an example."""
        there = dict(posts)
        for post_id, text in {**self.texts, **self.added}.items():
            found = there.get(post_id)
            if found != text and found not in self._unsure[post_id]:
                yield "acknowledged writes are stored", f"post {post_id}: expected {text!r}, found {found!r}"
        seen: set[str] = set()
        for post_id, text in posts:
            known = post_id in self.texts or post_id in self.added
            if not known and text not in self._unsure_texts:
                yield "all stored posts were sent", f"post {post_id}: {text!r}"
            if not known and text in seen:
                yield "no post is stored twice", f"post {post_id}: {text!r}"
            seen.add(text)
