"""Errors of pages."""

from tests.helpers import Response


def check_text_error(answer: Response, status: int) -> None:
    """Check the body of an error that is no problem details."""
    assert answer.status == status
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
