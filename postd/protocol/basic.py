"""The user-pass of Basic access authentication (RFC 7617)."""

from binascii import a2b_base64, b2a_base64

from postd.protocol.password import has_control


class BasicSyntaxError(ValueError):
    """Basic credentials that are none; `str()` of it says why, for the log."""


def decode_user_pass(token: bytes) -> tuple[str, str]:
    """Return the user-id and the password (RFC 7617 §2).

    The text is UTF-8 (§2.1), the Base64 canonical: with its padding, and with nothing in it that is not of its
    alphabet (RFC 4648 §3.2, §3.3).

    Raises:
        BasicSyntaxError: it is something else, has no colon, or control characters, which §2 forbids.
    """
    try:
        decoded = a2b_base64(token, strict_mode=True)
        text = decoded.decode("utf-8")
    except ValueError:
        raise BasicSyntaxError("not UTF-8 text in Base64") from None
    # Bits that padding leaves over: many texts would stand for the same user-pass.
    if b2a_base64(decoded, newline=False) != token:
        raise BasicSyntaxError("not canonical Base64")
    user, colon, password = text.partition(":")
    if not colon:
        raise BasicSyntaxError("no colon")
    if has_control(text):
        raise BasicSyntaxError("a control character")
    return user, password
