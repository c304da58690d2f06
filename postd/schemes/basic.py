"""Basic (RFC 7617; spec: Basic)."""

from postd.protect.basic import BasicCredentialFactory
from postd.schemes.interface import Context, Scheme
from postd.web.access import ClientCode, SchemeDescription, SchemeParts
from postd.web.openapi.components import CROSS_SITE

_CODE = ClientCode('auth=("alice", getpass())', imports=("from getpass import getpass",))


class BasicScheme(Scheme):
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

    def make(self, context: Context) -> tuple[SchemeParts, None]:
        realm = context.settings.realm
        return SchemeParts(
            (context.passwords,), lambda resource: [BasicCredentialFactory(realm, resource.clients)]
        ), None


SCHEME = BasicScheme()
