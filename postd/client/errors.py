"""Errors of the client; `str()` of each is one line for its user."""

from postd.errors import PostdError


class ClientError(PostdError):
    """Base class of the client's errors."""


class NoAnswerError(ClientError):
    """No response: the connection failed, broke, or timed out.

    Args:
        sent: whether the server may have received and executed the request.
    """

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class UnusableAnswerError(ClientError):
    """A response that does not come from postd: another server, or a broken proxy."""


class SignInError(ClientError):
    """Authentication failed: password refused, no token available, or the server did not prove its identity.

    Args:
        temporary: whether a retry may succeed: the server or the issuer is temporarily unavailable.
    """

    def __init__(self, why: str, *, temporary: bool = False) -> None:
        super().__init__(why)
        self.temporary = temporary


class ProblemError(ClientError):
    """A response that reports an error (RFC 9457).

    Example::

        async with PostClient(reactor, "http://127.0.0.1:8080", Digest("alice", "wonderland")) as posts:
            try:
                await posts.get(99)
            except ProblemError as problem:
                print(problem.status, problem.title)  # 404 Not Found

    Args:
        title: the kind of problem.
        detail: the problem of this request; empty if the server does not report it.
        pointer: JSON Pointer to the offending part of the body; empty if there is none.
        retry_after_s: seconds to wait before a retry; None if the server does not report it.
    """

    def __init__(
        self, status: int, title: str, detail: str = "", *, pointer: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, title, detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.pointer = pointer
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        later = "" if self.retry_after_s is None else f" (retry after {self.retry_after_s:.0f} s)"
        return f"{self.status} {self.title}{': ' if self.detail else ''}{self.detail}{later}"
