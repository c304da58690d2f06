"""The forms of posts in lists (`postd.web.forms`)."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from msgspec import Struct

from postd.store.interface import Page
from postd.web.authorship import Form
from postd.web.forms import encode_listed
from postd.web.lists.encoded_piece import encode_posts


class ListForm(Struct, frozen=True):
    """A form of posts in lists.

    Args:
        read: reads a page from a store: `list_posts` or `list_details`.
        encode: encodes the posts of the page, for `postd.web.lists.encoded_piece.join_posts`.
        query: what the links to further pages have before the other parameters.
        tag: the end of entity tags.
        post_max_bytes: the largest encoded post. Names of authors may be longer than is assumed here.
    """

    read: Callable[..., Awaitable[Page[Any]]]
    encode: Callable[[Iterable[Any]], list[bytes]]
    query: bytes
    tag: bytes
    post_max_bytes: int


PLAIN_LIST = ListForm(
    lambda store, **asked: store.list_posts(**asked),
    encode_posts,
    query=b"",
    tag=b"",
    post_max_bytes=140 * len(r"\u0001") + 64,
)


def _with_details(form: Form) -> ListForm:
    return ListForm(
        lambda store, **asked: store.list_details(**asked),
        partial(encode_listed, form=form),
        query=b"include=meta&",
        tag=form.value,
        post_max_bytes=PLAIN_LIST.post_max_bytes + 512,
    )


DETAILED_LIST = _with_details(Form.DETAILED)
ANONYMOUS_LIST = _with_details(Form.ANONYMOUS)
