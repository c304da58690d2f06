"""The exceptions of the domain.

1. An exception carries data (a post's id, a file's name) and at most one sentence, `why`, without secrets.
2. It has no status code: `postd.http.errors` maps the classes to responses.
3. Functions here write parts of one-line messages: `printable`, `join_names`.
"""

from collections.abc import Sequence


class PostdError(Exception):
    """The base class; never raised itself."""


class UnusableCertificateError(PostdError):
    """A key and a certificate that cannot be used; `str()` is the reason."""


class ConfigError(PostdError, ValueError):
    """A setting or an argument cannot be used. `str()` is one line.

    Args:
        where: the place to correct: a file, a file and its key, or an option.
        why: the problem, and the allowed values.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where = where
        self.why = why

    def __str__(self) -> str:
        # Names of keys and files are untrusted input.
        return printable(" ".join(f"{self.where}: {self.why}".split()))


class _PostIdError(PostdError):
    """An error about one post."""

    def __init__(self, post_id: int) -> None:
        super().__init__(post_id)
        self.post_id = post_id


class _ReasonError(PostdError):
    """An error with a reason, `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class InvalidTextError(_ReasonError, ValueError):
    """A text is not allowed in a post; `why` gives the reason in a sentence."""


class NoSuchPostError(_PostIdError):
    """No post has this id, or it was deleted."""


class PostExistsError(_PostIdError):
    """A post with this id already exists."""


class StoreNotEmptyError(PostdError):
    """The store already has posts."""


class PostChangedError(_PostIdError):
    """The post no longer has the text that the caller expected."""


class NotAuthorError(_PostIdError):
    """The post has another author than the caller expected, or none."""


class KeyReusedError(PostdError):
    """The idempotency key was already used for a different request."""


class KeyInUseError(PostdError):
    """A request with this idempotency key is still being processed."""


class ChangesGoneError(PostdError):
    """The change log does not have the requested revision: it was trimmed, or does not exist yet."""


class StoreRefusedError(_ReasonError):
    """The store cannot be used, and retrying is of no use: corrupt, foreign, newer, not writable. `why` is one line."""


class StoreMissingError(StoreRefusedError):
    """The store does not exist, and must not be created."""


class StoreOlderError(StoreRefusedError):
    """The store has an older schema, and the caller must not migrate it."""


class StoreUnavailableError(_ReasonError):
    """The store is temporarily unavailable: locked, still opening, failing. `why` is for the log."""


class StoreBusyError(StoreUnavailableError):
    """The store's write queue is full."""


class StoreFullError(StoreUnavailableError):
    """The store is out of space; reads still work."""


class PasswordChangedError(PostdError):
    """The password of an account was changed by another edit of the user file, or the account was removed."""


class TooManyChangesError(PostdError):
    """An account has changed its password too often; `retry_after_s` is when it may again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class UserFileError(_ReasonError):
    """The user file cannot be written; `why` is for the log."""


class TooManyFailuresError(PostdError):
    """Too many logins have failed; further attempts are refused for `retry_after_s` seconds.

    `why` is the reason for the log, "" if it was logged a short time ago.
    """

    def __init__(self, retry_after_s: int, why: str = "") -> None:
        super().__init__(retry_after_s, why)
        self.retry_after_s = retry_after_s
        self.why = why


class ServerBusyError(PostdError):
    """Too much expensive work waits, or too many responses are on their way to their clients."""


class LoginsBusyError(ServerBusyError):
    """Credentials cannot be verified now: the queue is full, or memory is short."""


class IssuerUnavailableError(PostdError):
    """An issuer of access tokens is needed and does not answer.

    `retry_after_s` is how long the issuer wants no further request, 0 if it has not said.
    """

    def __init__(self, issuer: str, retry_after_s: float = 0.0) -> None:
        super().__init__(issuer, retry_after_s)
        self.issuer = issuer
        self.retry_after_s = retry_after_s


_NAMES_MAX = 10


def printable(text: str) -> str:
    """Return a text with its unprintable characters escaped, so that a terminal executes none of it."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def join_names(names: Sequence[str]) -> str:
    """Return names as a list of at most `_NAMES_MAX`, and how many more there are."""
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _escape(char: str) -> str:
    return f"\\x{ord(char):02x}" if char.isascii() else char.encode("ascii", "backslashreplace").decode()
