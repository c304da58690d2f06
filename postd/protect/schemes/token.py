"""Personal access tokens of accounts (reference: Personal access tokens)."""

from collections.abc import Collection, Iterator, Sequence

from postd.auth.accounts import Accounts
from postd.auth.personal_token import SCOPES, PersonalTokenChecker
from postd.protect.bearer import AcceptedTokens, BearerCredentialFactory
from postd.protect.guard import CredentialFactory, ProtectedResource
from postd.protect.personal_token import TokenFactory, TokenPasswordFactory
from postd.protect.schemes.interface import ClientCode, Context, Deployment, Scheme, SchemeDescription, SchemeParts
from postd.protocol.bearer import decode_scope

_CODE = ClientCode("""headers={"Authorization": f"Bearer {environ['TOKEN']}"}""", imports=("from os import environ",))


class Token(Scheme, frozen=True):
    """Personal access tokens in `Authorization`, as Bearer tokens, or as passwords where a rule has "basic", too.

    Args:
        issuers: the issuers of the OpenID providers, whose users may have tokens, too.
    """

    issuers: Sequence[str] = ()

    name = "token"
    description = SchemeDescription(
        title="Personal access token",
        security={
            "type": "http",
            "scheme": "bearer",
            "description": "A personal access token, `postd_...`, in the field `Authorization` as a Bearer token. "
            'A token with the access "read" permits GET and HEAD alone. Where Basic is accepted, a token may also '
            "be sent as the password with the name of its account.",
        },
        curl='-H "Authorization: Bearer $TOKEN"',
        httpx=_CODE,
        treq=_CODE,
        errors=((403, "The token lacks a scope."), (429, "Too many failed logins.")),
    )
    uses_accounts = True

    def make(self, context: Context) -> SchemeParts:
        accounts = Accounts(context.accounts, context.providers)
        checker = PersonalTokenChecker(accounts, context.store, context.throttle, now=context.clock.seconds)
        own = AcceptedTokens(context.realm, (), context.mounted)

        def combine(factories: Sequence[CredentialFactory], resource: ProtectedResource) -> list[CredentialFactory]:
            others = next((factory for factory in factories if factory.scheme == b"bearer"), None)
            bearer = others or BearerCredentialFactory(own, resource)
            tokens = TokenFactory(resource, bearer, takes_others=others is not None)
            combined: list[CredentialFactory] = []
            for factory in factories:
                if factory.scheme == b"basic":
                    combined.append(TokenPasswordFactory(resource, factory, bearer))
                else:
                    combined.append(tokens if factory is others else factory)
            if others is None:
                # After Digest, and before DPoP (reference: Schemes).
                combined.insert(sum(factory.scheme == b"digest" for factory in combined), tokens)
            return combined

        return SchemeParts((checker,), combine=combine)

    def secrets(self, deployment: Deployment) -> str | None:
        return "tokens" if deployment.rules_of(self.name) else None

    def problems(self, deployment: Deployment) -> Iterator[str]:
        for rule in deployment.rules:
            for scope in rule.scopes if self.name in rule.schemes else ():
                if not decode_scope(scope) <= SCOPES["write"]:
                    why = 'no personal access token has it, only "read" and "write"'
                    yield f'page {rule.name}: its scope "{scope}": {why}'

    @property
    def issuers_of_users(self) -> Collection[str]:
        return self.issuers
