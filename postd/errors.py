"""What can go wrong, in the words of the domain.

1. An error carries data (a post's id, a file's name) and at most a sentence, `why`, that fits any reader.
2. No status code lives here: `postd.web.errors` holds the one table from these classes to answers.
"""

import os

SOCKET_PATH_MAX_BYTES = 107
"""What the kernel has room for in the address of a UNIX socket: unix(7)."""


def check_socket_path(path: str) -> None:
    """Check that a UNIX socket can have a path.

    Raises:
        ValueError: it is too long; Python would say so without the lengths, and Twisted not where it connects.
    """
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_MAX_BYTES:
        raise ValueError(f"a path of {size} bytes, more than the {SOCKET_PATH_MAX_BYTES} of a UNIX socket")


def printable(text: str) -> str:
    """Return somebody's text with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code_point: int) -> str:
    if code_point < 0x100:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04x}" if code_point < 0x10000 else f"\\U{code_point:08x}"


class PostdError(Exception):
    """The root of the tree; never raised itself."""


class ConfigError(PostdError):
    """A setting that cannot be used. `str()` of it is one line.

    Args:
        where: what the reader has to change: a file, a file and its key, or an option.
        why: what is wrong, and what is allowed.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where = where
        self.why = why

    def __str__(self) -> str:
        # Names of keys and files are somebody's input.
        return printable(" ".join(f"{self.where}: {self.why}".split()))


class InvalidTextError(PostdError):
    """A text that no post can carry; `why` says so in a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NoSuchPostError(PostdError):
    """There is no post with this id, or not any more."""

    def __init__(self, post_id: int) -> None:
        super().__init__(post_id)
        self.post_id = post_id


class PostExistsError(PostdError):
    """There is a post with this id already."""

    def __init__(self, post_id: int) -> None:
        super().__init__(post_id)
        self.post_id = post_id


class StoreNotEmptyError(PostdError):
    """There are posts in the store."""


class PostChangedError(PostdError):
    """The post no longer has the text that the caller expected of it."""

    def __init__(self, post_id: int) -> None:
        super().__init__(post_id)
        self.post_id = post_id


class KeyReusedError(PostdError):
    """Another request was made with this idempotency key."""


class KeyInUseError(PostdError):
    """A request with this idempotency key is under way."""


class ChangesGoneError(PostdError):
    """The change log does not reach from the revision asked for: trimmed since, or not there yet."""

    def __init__(self, revision: int) -> None:
        super().__init__(revision)
        self.revision = revision


class StoreRefusedError(PostdError):
    """The store will never serve us as things are: corrupt, foreign, newer, not writable. `why` is one line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class StoreMissingError(StoreRefusedError):
    """There is no store at that place, and none is to be made."""


class StoreOlderError(StoreRefusedError):
    """An older postd has left it as it is, and whoever asks is not to bring it up to date."""


class StoreUnavailableError(PostdError):
    """The store does not answer now and may later: locked, still opening, failing. `why` is for the log."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class StoreBusyError(StoreUnavailableError):
    """More writes wait than the store takes on."""


class StoreFullError(StoreUnavailableError):
    """There is no room to store any more; what is stored can be read."""


class TooManyFailuresError(PostdError):
    """Too many logins have failed; no other is looked at before `retry_after_s` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class LoginsBusyError(PostdError):
    """Credentials cannot be verified now: as many as we take on are waiting, or there is not the memory for it."""


class IssuerUnavailableError(PostdError):
    """An issuer of tokens has to be asked, and does not answer now."""

    def __init__(self, issuer: str) -> None:
        super().__init__(issuer)
        self.issuer = issuer
