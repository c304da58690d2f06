"""The user-pass of Basic access authentication (RFC 7617)."""

from binascii import a2b_base64, b2a_base64

from postd.protocol.password import decode_text, has_control


class BasicSyntaxError(ValueError):
    """Malformed Basic credentials; `str()` gives the reason, for the log."""


def decode_user_pass(token: bytes) -> tuple[str, str]:
    """Return the user-id and the password (RFC 7617 §2).

    The Base64 must be canonical: padded, without characters outside its alphabet (RFC 4648 §3.2, §3.3).

    Raises:
        BasicSyntaxError: it is malformed, has no colon, or has control characters, which §2 forbids.
    """
    try:
        decoded = a2b_base64(token, strict_mode=True)
    except ValueError:
        raise BasicSyntaxError("not Base64") from None
    # Unused bits before the padding: otherwise several texts would decode to the same user-pass.
    if b2a_base64(decoded, newline=False) != token:
        raise BasicSyntaxError("not canonical Base64")
    text = decode_text(decoded)
    user, colon, password = text.partition(":")
    if not colon:
        raise BasicSyntaxError("no colon")
    if not text.isprintable() and has_control(text):  # the first is the faster, and finds more
        raise BasicSyntaxError("a control character")
    return user, password
