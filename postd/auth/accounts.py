"""The accounts of a service: those of its user file, and the users of its OpenID providers."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from postd.auth.session import Fingerprints
from postd.protocol.id_token import IdTokenPolicy

if TYPE_CHECKING:  # with it come treq and joserfc
    from postd.auth.sign_in import Provider


class Accounts:
    """Looks up the entries of accounts, to which their tokens and passkeys belong.

    Args:
        users: the accounts of the user file, or of a checker in its place.
        providers: the OpenID providers by their ids in the settings; their users are the accounts `ISSUER#NAME`.
    """

    def __init__(self, users: Fingerprints, providers: Mapping[str, "Provider"]) -> None:
        self._users = users
        self._providers = providers

    def entry(self, account: str, provider: str = "") -> bytes | None:
        """Return the entry of an account, None if there is no such account.

        `provider` is the id of the provider whose user it is, empty for an account of the user file.
        """
        if provider:
            found = self._providers.get(provider)
            return None if found is None else found.fingerprint
        return self._users.entry(account)

    def has_entry(self, account: str, entry: bytes) -> bool:
        """Return whether an account exists, with this entry."""
        return self._users.entry(account) == entry or self.provider(account, entry) is not None

    def provider(self, account: str, entry: bytes) -> "Provider | None":
        """Return the provider whose user has this entry, None if it is no user of a provider."""
        for provider in self._providers.values():
            if provider.fingerprint == entry and account.startswith(f"{provider.url}#"):
                return provider
        return None


def find_provider_entry(account: str, policies: Iterable[IdTokenPolicy]) -> bytes | None:
    """Return the entry of a user of one of the OpenID providers with these policies, None if it is none."""
    issuer, _, name = account.partition("#")
    return next((policy.fingerprint for policy in policies if name and policy.issuer == issuer), None)
