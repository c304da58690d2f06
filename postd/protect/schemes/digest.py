"""Digest (RFC 7616; spec: Digest)."""

from collections.abc import Iterator, Mapping, Sequence

from postd.auth.digest import DigestChecker, NonceRegistry, describe_missing_digest
from postd.auth.user_file import Account
from postd.defaults import DIGEST_ALGORITHMS, NONCE_LIFETIME_S
from postd.protect.digest import DigestCredentialFactory
from postd.protect.guard import ProtectedResource
from postd.protect.schemes.interface import CROSS_SITE, ClientCode, Context, Scheme, SchemeDescription, SchemeParts
from postd.protocol.digest import DigestDecoder

_IMPORTS = ("from getpass import getpass",)


class Digest(Scheme, frozen=True):
    """Names and hashed passwords in `Authorization`.

    Args:
        algorithms: `MD5` and `SHA-256`, in the order of the challenges.
        nonce_lifetime_s: the lifetime of a nonce.
    """

    algorithms: Sequence[str] = DIGEST_ALGORITHMS
    nonce_lifetime_s: float = NONCE_LIFETIME_S

    name = "digest"
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

    def make(self, context: Context) -> SchemeParts:
        nonces = NonceRegistry(context.store, lifetime_s=self.nonce_lifetime_s, now=context.clock.seconds)
        algorithms = tuple(dict.fromkeys(self.algorithms))
        decode = DigestDecoder().decode
        checker = DigestChecker(context.users, nonces, context.throttle, realm=context.realm)

        def make_factories(resource: ProtectedResource) -> Sequence[DigestCredentialFactory]:
            clients, refuse = resource.clients, checker.refuse
            return [DigestCredentialFactory(context.realm, algorithms, nonces, clients, decode=decode, refuse=refuse)]

        return SchemeParts((checker,), make_factories)

    def account_problems(self, accounts: Mapping[str, Account], realm: str) -> Iterator[str]:
        problem = describe_missing_digest(accounts, realm, self.algorithms)
        if problem is not None:
            yield problem
