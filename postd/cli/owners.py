"""The accounts that own sessions, tokens and passkeys in a store, by the settings."""

from collections.abc import Mapping

from msgspec import Struct

from postd.auth.user_file import Account, check_name, load_accounts
from postd.cli.passwords import require_valid
from postd.daemon.schemes import make_providers
from postd.protocol.bearer import has_issuer
from postd.protocol.session import Session
from postd.settings.loading import LoadedSettings


class Owners(Struct, frozen=True):
    """The accounts that exist, as far as the settings can tell.

    Another server of the store may have the user file or the providers that these settings lack: any account of that
    kind is taken to exist then.

    Args:
        accounts: those of the user file, by name; None if there is no user file.
        providers: the OpenID providers, whose users are the accounts `ISSUER#NAME`: their fingerprints by their ids.
        issuers: the issuers of the providers, by the same ids.
    """

    accounts: Mapping[str, Account] | None
    providers: Mapping[str, bytes]
    issuers: Mapping[str, str]

    def owns(self, account: str, entry: bytes) -> bool:
        """Return whether an account exists with the entry of a token or a passkey."""
        if has_issuer(account):
            return not self.providers or entry in self.providers.values()
        return self.accounts is None or (account in self.accounts and self.accounts[account].entry == entry)

    def has_begun(self, session: Session) -> bool:
        """Return whether the user of a session exists, with the password or at the provider of the sign-in."""
        if session.provider:
            return not self.providers or self.providers.get(session.provider) == session.fingerprint
        account = (self.accounts or {}).get(session.username)
        return self.accounts is None or (account is not None and account.fingerprint == session.fingerprint)


def load_owners(loaded: LoadedSettings) -> Owners:
    """Return the accounts of the settings.

    Raises:
        ConfigError: the user file cannot be read.
    """
    return make_owners(loaded, load_accounts(loaded.settings.users) if loaded.settings.users else None)


def make_owners(loaded: LoadedSettings, accounts: Mapping[str, Account] | None) -> Owners:
    """Return the accounts of a user file, None if there is none, and the providers of the settings."""
    policies = {one.id: one.policy for one in make_providers(loaded)}
    return Owners(
        accounts,
        {name: policy.fingerprint for name, policy in policies.items()},
        {name: policy.issuer for name, policy in policies.items()},
    )


def normalize_owner(account: str) -> str:
    """Return the name of an account as stores have it.

    Raises:
        click.ClickException: it cannot be one.
    """
    return account if has_issuer(account) else require_valid("the name", check_name, account)
