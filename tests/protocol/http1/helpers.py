"""What the tests of heads and of chunked bodies have in common."""

from collections.abc import Callable

import pytest

from postd.protocol.http1.syntax import HttpSyntaxError


def title(name: bytes) -> bytes:
    if not name.replace(b"-", b"").isalnum():
        raise ValueError
    return name.title()


def refusal(call: Callable[[], object]) -> int:
    """Return the status with which a call refuses a request."""
    with pytest.raises(HttpSyntaxError) as caught:
        call()
    assert caught.value.why.endswith(".")
    return caught.value.status
