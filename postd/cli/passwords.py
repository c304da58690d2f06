"""How commands come by a password: from a terminal, or from the standard input."""

import getpass
import sys
from collections.abc import Callable

import click

from postd.errors import printable
from postd.protocol.password import PASSWORD_MAX_CHARS, check_password, normalize

password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from the first line of the standard input, in UTF-8."
)


def checked(what: str, check: Callable[[str], str], text: str) -> str:
    """Return what a check returns.

    Args:
        what: names the text in a message, "the password".
        check: raises ValueError with the rest of the sentence.
        text: is checked.

    Raises:
        click.ClickException: the text does not pass.
    """
    try:
        return check(text)
    except ValueError as error:
        raise click.ClickException(f"{what} {error}") from None


def read_password() -> str:
    """Return the first line of the standard input without its end; what follows is left there."""
    if sys.stdin is None:
        raise click.ClickException("there is no standard input to read the password from")
    line_max_bytes = 4 * PASSWORD_MAX_CHARS
    line = sys.stdin.buffer.readline(line_max_bytes + len(b"\r\n"))
    if line.endswith(b"\n"):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
    # Cut short, it may end within a character.
    text = line.decode(errors="replace" if len(line) > line_max_bytes else "surrogateescape")
    return checked("the password", check_password, text)


def ask_password(name: str, *, twice: bool = False) -> str:
    """Ask for the password of a name on the terminal.

    Args:
        name: whose it is.
        twice: ask once more, for one that is made up now.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.ClickException("there is no terminal to ask for the password; give --password-stdin to read it")
    try:
        password = checked("the password", check_password, getpass.getpass(f"Password for {printable(name)}: "))
        again = getpass.getpass("The same again: ") if twice else password
    except UnicodeDecodeError:
        raise click.ClickException("the password is not text in the encoding of this terminal") from None
    if normalize(again) != password:
        raise click.ClickException("the two passwords are not the same; nothing was changed")
    return password
