"""Passkeys: the credentials of WebAuthn Level 3 that a store has."""

from msgspec import Struct


class Passkey(Struct, frozen=True):
    """A passkey. Times are seconds since the epoch.

    Args:
        id: names it in lists.
        credential_id: by the authenticator, at most 1023 bytes.
        account: its owner, as an identity names it.
        entry: its owner's entry in the user file, or at the provider; after another one the passkey is worthless.
        public_key: as a COSE key (RFC 9052).
        label: by its owner.
        created: when it was added.
        used: when it was last used; 0: never.
        sign_count: the signature counter at the last use; 0 of an authenticator without one.
        backup_eligible: whether its authenticator may back it up.
        backed_up: whether it was backed up at the last use.
        shown_name: the owner's name for people, where the owner is a user of an OpenID provider.
        subject: the owner at that provider (`sub`).
    """

    id: str
    credential_id: bytes
    account: str
    entry: bytes
    public_key: bytes
    label: str
    created: float
    used: float = 0.0
    sign_count: int = 0
    backup_eligible: bool = False
    backed_up: bool = False
    shown_name: str = ""
    subject: str = ""
