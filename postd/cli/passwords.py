"""Passwords from the terminal or from standard input."""

import codecs
import getpass
import sys
from collections.abc import Callable

import click

from postd.errors import printable
from postd.protocol.password import PASSWORD_MAX_CHARS, check_password, normalize

password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from the first line of stdin, in UTF-8."
)


def require_valid(what: str, check: Callable[[str], str], text: str) -> str:
    """Return the result of a check of user input.

    Args:
        what: the name of the input in a message, such as "the password".
        check: returns the valid input; raises ValueError with the rest of the sentence.
        text: the input.

    Raises:
        click.ClickException: the input is not valid.
    """
    try:
        return check(text)
    except ValueError as error:
        raise click.ClickException(f"{what} {error}") from None


def read_password() -> str:
    """Return the first line of standard input without its line end and a byte order mark; the rest is not read."""
    if sys.stdin is None:
        raise click.ClickException("there is no standard input to read the password from")
    line_max_bytes = 4 * PASSWORD_MAX_CHARS
    line = sys.stdin.buffer.readline(len(codecs.BOM_UTF8) + line_max_bytes + len(b"\r\n"))
    line = line.removeprefix(codecs.BOM_UTF8)
    if line.endswith(b"\n"):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
    # A line that was cut may end within a character.
    text = line.decode(errors="replace" if len(line) > line_max_bytes else "surrogateescape")
    return require_valid("the password", check_password, text)


def ask_password(name: str, *, twice: bool = False) -> str:
    """Ask on the terminal for the password of the user `name`; `twice` for a new password."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.ClickException("there is no terminal to ask for the password; give --password-stdin to read it")
    try:
        password = require_valid("the password", check_password, getpass.getpass(f"Password for {printable(name)}: "))
        again = getpass.getpass("Repeat the password: ") if twice else password
    except UnicodeDecodeError:
        raise click.ClickException("the password is not text in the encoding of this terminal") from None
    if normalize(again) != password:
        raise click.ClickException("the two passwords are not the same; nothing was changed")
    return password
