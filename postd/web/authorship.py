"""The authors of posts: who may change a post, and who sees the names (`[api] own`, `moderators`, `show_authors`)."""

from enum import Enum

from msgspec import Struct

from postd.auth.identity import Identity
from postd.http.interface import Request


class Form(Enum):
    """A form of posts in responses; the value is the end of its entity tags."""

    PLAIN = b""
    DETAILED = b"-meta"
    ANONYMOUS = b"-anonymous"
    """With details, but without authors."""


class Authorship(Struct, frozen=True):
    """The settings about authors.

    Args:
        own: whether only the author of a post and moderators may change or delete it.
        moderators: accounts that may change all posts; names of the user file are normalized.
        shown_to_all: whether clients without credentials see the names of authors, too.
    """

    own: bool = False
    moderators: frozenset[str] = frozenset()
    shown_to_all: bool = True

    def expected_author(self, request: Request) -> str | None:
        """Return the author that a post must have for the request to change it (`PostStore.replace_post`)."""
        if not self.own:
            return None
        author = author_of(request)
        return None if author in self.moderators else author or ""

    def may_change(self, request: Request, author: str | None) -> bool:
        """Return whether the request may change a post of an author."""
        return self.expected_author(request) in {None, author}

    def form(self, request: Request) -> Form:
        """Return the form with details for a request: authors are named, or they are not."""
        return Form.DETAILED if self.shown_to_all or request.identity is not None else Form.ANONYMOUS


UNRESTRICTED = Authorship()
"""All who may write may change all posts, and all who may read see their authors."""


def author_of(request: Request) -> str | None:
    """Return the account that becomes the author of a post of the request, None without credentials."""
    identity: Identity | None = request.identity
    return None if identity is None else identity.account
