"""What can go wrong for a client; `str()` of each is one line for whoever uses it."""

from postd.errors import PostdError


class ClientError(PostdError):
    """The root of them; never raised itself."""


class NoAnswerError(ClientError):
    """There is no answer: no connection, or one that broke or took too long.

    Args:
        why: in a line.
        sent: whether the server may have had the request, and have done what it asks.
    """

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class UnusableAnswerError(ClientError):
    """There is an answer, and it is not what was asked for: no postd, or something between that is broken."""


class SignInError(ClientError):
    """We have nothing to show: a password was refused, a token is not to be had, or the server is not who it says.

    Args:
        why: in a line.
        passing: whether it may be another time: who has to be asked does not answer.
    """

    def __init__(self, why: str, *, passing: bool = False) -> None:
        super().__init__(why)
        self.passing = passing


class ProblemError(ClientError):
    """The server says no (RFC 9457).

    Args:
        status: of HTTP.
        title: what kind of problem it is.
        detail: what is wrong this time; empty where the server does not say.
        pointer: where in the body, empty likewise.
        retry_after_s: when to come back, None likewise.
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
        later = "" if self.retry_after_s is None else f" (come back in {self.retry_after_s:.0f} s)"
        return f"{self.status} {self.title}{': ' if self.detail else ''}{self.detail}{later}"
