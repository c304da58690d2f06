"""Digest (RFC 7616; spec: Digest)."""

from collections.abc import Iterator, Mapping, Sequence

from postd.auth.digest import DigestChecker, NonceRegistry, describe_missing_digest
from postd.auth.user_file import Account
from postd.protect.digest import DigestCredentialFactory
from postd.protect.guard import ProtectedResource
from postd.schemes.interface import Context, Scheme
from postd.settings.schema import Settings
from postd.web.access import ClientCode, SchemeDescription, SchemeParts
from postd.web.openapi.components import CROSS_SITE

_IMPORTS = ("from getpass import getpass",)


class DigestScheme(Scheme):
    description = SchemeDescription(
        title="Digest",
        security={
            "type": "http",
            "scheme": "digest",
            "description": "User name and password, sent as a hash (RFC 7616).",
        },
        curl="--digest -u alice",
        httpx=ClientCode('auth=httpx.DigestAuth("alice", getpass())', imports=_IMPORTS),
        # treq itself has Basic alone.
        treq=ClientCode(
            "agent=client.agent",
            ('client = AuthClient(reactor, "{origin}", Digest("alice", getpass()))',),
            _IMPORTS,
            ("from postd.client import AuthClient, Digest",),
        ),
        errors=((429, "Too many failed logins."),),
        write_errors=((403, CROSS_SITE),),
        headers=("Authentication-Info",),
    )
    uses_accounts = True

    def make(self, context: Context) -> tuple[SchemeParts, None]:
        settings = context.settings
        nonces = NonceRegistry(context.store, lifetime_s=settings.digest.nonce_lifetime_s, now=context.clock.seconds)
        algorithms = tuple(dict.fromkeys(settings.digest.algorithms))
        checker = DigestChecker(context.users, nonces, context.throttle, realm=settings.realm)

        def make_factories(resource: ProtectedResource) -> Sequence[DigestCredentialFactory]:
            return [DigestCredentialFactory(settings.realm, algorithms, nonces, resource.clients)]

        return SchemeParts((checker,), make_factories), None

    def account_problems(self, settings: Settings, accounts: Mapping[str, Account]) -> Iterator[str]:
        problem = describe_missing_digest(accounts, settings.realm, settings.digest.algorithms)
        if problem is not None:
            yield problem


SCHEME = DigestScheme()
