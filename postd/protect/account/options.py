"""The options of the pages below `/account`."""

from msgspec import Struct

from postd.defaults import TOKEN_LIFETIME_S


class AccountOptions(Struct, frozen=True):
    """What users may change at `/account`; ending their sessions is always allowed.

    Args:
        change_password: whether users of the user file may change their password.
        tokens: whether users may make personal access tokens.
        token_lifetime_s: the longest lifetime of a token; infinite for no bound.
        passkeys: whether users may add passkeys, and sign in with them.
        sample_path: what the command line reads that shows the use of a new token.
    """

    change_password: bool = False
    tokens: bool = False
    token_lifetime_s: float = TOKEN_LIFETIME_S
    passkeys: bool = False
    sample_path: str = "/"
