"""The details of a post as a member of `DETAILS` in Redis has them: `CREATED:UPDATED:AUTHOR`."""

from postd.model import PostDetails


def encode_details(created: int | None, updated: int | None, author: str | None) -> str:
    """Return details as text, empty if none is known."""
    if created is None and updated is None and author is None:
        return ""
    return f"{_text_of(created)}:{_text_of(updated)}:{author or ''}"


def decode_details(post_id: int, text: str, details: str) -> PostDetails:
    """Return a post with its details."""
    created, _, rest = details.partition(":")
    updated, _, author = rest.partition(":")
    return PostDetails(post_id, text, _number_of(created), _number_of(updated), author or None)


def _text_of(number: int | None) -> str:
    return "" if number is None else str(number)


def _number_of(text: str) -> int | None:
    return int(text) if text else None
