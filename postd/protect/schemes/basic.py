"""Basic (RFC 7617; spec: Basic)."""

from postd.protect.basic import BasicCredentialFactory
from postd.protect.schemes.interface import CROSS_SITE, ClientCode, Context, Scheme, SchemeDescription, SchemeParts

_CODE = ClientCode('auth=("alice", getpass())', imports=("from getpass import getpass",))


class Basic(Scheme, frozen=True):
    """Names and passwords in `Authorization`."""

    name = "basic"
    description = SchemeDescription(
        title="Basic",
        security={"type": "http", "scheme": "basic", "description": "User name and password (RFC 7617)."},
        curl="-u alice",
        httpx=_CODE,
        treq=_CODE,
        errors=((429, "Too many failed logins."), (503, "Credentials cannot be checked now.")),
        write_errors=((403, CROSS_SITE),),
    )
    uses_accounts = True

    def make(self, context: Context) -> SchemeParts:
        return SchemeParts(
            (context.passwords,), lambda resource: [BasicCredentialFactory(context.realm, resource.clients)]
        )
