"""What must be in the store when all is over: what was acknowledged, and what nobody can know."""

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count


class Ledger:
    """Posts of this run. One that is there at the start is replaced by one client at a time.

    Args:
        texts: what is there at the start, by id.
    """

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = dict(texts)
        self.replaceable = deque(texts)
        """Those that nobody is replacing."""
        self.added: dict[int, str] = {}
        """What was acknowledged."""
        self.replaced = 0
        self._unsure_texts: set[str] = set()
        self._unsure: dict[int, set[str]] = defaultdict(set)
        self._numbers = count(1)

    def new_text(self) -> str:
        """Return a text that no other post has."""
        return f"Operated {next(self._numbers):08}: grüße, 世界 🚀, in as many words as most posts have."

    def add(self, post_id: int, text: str) -> str:
        """Note a post that was acknowledged; return what is wrong with its id, or nothing."""
        wrong = f"the id {post_id} was given out twice" if post_id in self.added or post_id in self.texts else ""
        self.added[post_id] = text
        return wrong

    def replace(self, post_id: int, text: str) -> None:
        self.texts[post_id] = text
        self._unsure.pop(post_id, None)
        self.replaced += 1

    def doubt_add(self, text: str) -> None:
        """Note a post that may have been stored or not: there was no answer."""
        self._unsure_texts.add(text)

    def doubt_replace(self, post_id: int, text: str) -> None:
        self._unsure[post_id].add(text)

    def problems(self, posts: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with all the posts there are: a promise, and an example."""
        there = dict(posts)
        for post_id, text in {**self.texts, **self.added}.items():
            found = there.get(post_id)
            if found != text and found not in self._unsure[post_id]:
                yield "what was acknowledged is there", f"post {post_id} is {found!r} and not {text!r}"
        seen: set[str] = set()
        for post_id, text in posts:
            known = post_id in self.texts or post_id in self.added
            if not known and text not in self._unsure_texts:
                yield "nothing is there that nobody was told of", f"post {post_id}: {text!r}"
            if not known and text in seen:
                yield "what was sent once is there once", f"post {post_id}: {text!r}"
            seen.add(text)
