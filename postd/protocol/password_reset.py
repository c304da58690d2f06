"""Resets of passwords: what a store has of a link that sets a new password once."""

from msgspec import Struct


class PasswordReset(Struct, frozen=True):
    """A link that sets a new password, without its secret.

    Args:
        account: whose password it sets.
        fingerprint: that of the account's password when the link was made; with another one it is worthless.
        expires: when it expires, in seconds since the epoch.
    """

    account: str
    fingerprint: bytes
    expires: float
