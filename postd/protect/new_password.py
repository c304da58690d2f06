"""What the pages on which users set a new password have in common."""

from postd.errors import PasswordChangedError, TooManyChangesError, UserFileError
from postd.http.errors import Problem, to_problem
from postd.protocol.password import check_password, normalize

_NOT_WRITABLE = "The server cannot write its user file now; its log has the reason. The password was not changed."


def check_new_password(new: str, again: str) -> str:
    """Return a new password, which was typed twice, normalized.

    Raises:
        Problem: 422, it is not allowed, or the two differ.
    """
    try:
        password = check_password(new)
    except ValueError as error:
        raise Problem(422, f"The new password {error}.") from None
    if normalize(again) != password:
        raise Problem(422, "The two new passwords are not the same.")
    return password


def to_password_problem(error: BaseException) -> Problem | None:
    """Return the problem that a new password was not set, None for an unexpected error."""
    match error:
        case PasswordChangedError():
            return Problem(409, "The password was changed in the meantime.", headers={b"Retry-After": b"1"})
        case TooManyChangesError(retry_after_s=seconds):
            return Problem(429, "Too many changes of this password.", headers={b"Retry-After": b"%d" % seconds})
        case UserFileError():
            return Problem(503, _NOT_WRITABLE, headers={b"Retry-After": b"60"})
        case _:
            return to_problem(error)
