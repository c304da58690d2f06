"""The accounts that own credentials in a store, by the settings."""

from collections.abc import Callable

from postd.auth.user_file import check_name, load_accounts
from postd.cli.passwords import require_valid
from postd.daemon.schemes import make_providers
from postd.protocol.bearer import has_issuer
from postd.settings.loading import LoadedSettings


def normalize_owner(account: str) -> str:
    """Return the name of an account as stores have it.

    Raises:
        click.ClickException: it cannot be one.
    """
    return account if has_issuer(account) else require_valid("the name", check_name, account)


def is_owned(loaded: LoadedSettings) -> Callable[[str, bytes], bool]:
    """Return a function that returns whether an account exists with an entry, as far as these settings can tell.

    Raises:
        ConfigError: the user file cannot be read.
    """
    accounts = load_accounts(loaded.settings.users) if loaded.settings.users else None
    entries = {name: account.entry for name, account in (accounts or {}).items()}
    fingerprints = {one.policy.fingerprint for one in make_providers(loaded)}

    def is_owned(account: str, entry: bytes) -> bool:
        if has_issuer(account):  # another server of the store may have providers
            return not fingerprints or entry in fingerprints
        return accounts is None or entries.get(account) == entry

    return is_owned
