"""An issuer of access tokens on loopback (`Issuer`)."""

import time
from typing import Any

from joserfc import jwt

from postd.protect import TrustedIssuer, issuer
from postd.protocol.discovery import OPENID_PATH
from postd.reactor import AnyReactor
from postd.testing.endpoints import Answer, Endpoints
from postd.testing.faults import make_key
from postd.testing.serving import Server

LIFETIME_S = 600


class Issuer(Server):
    """An issuer with a new key (ES256), at a free port of 127.0.0.1; its identifier is its `url`.

    It serves its metadata (OpenID Connect Discovery 1.0 §4) and its keys (RFC 7517).

    Example::

        async with Issuer(reactor) as issuer, Protection(reactor, issuers=[issuer.trusted()]) as protection:
            async with Server(reactor, protection.protect(resource, "bearer")) as server:
                response = await server.client().get(server.url, headers=bearer(issuer.sign(sub="bob")))
                print(response.code)  # 200

    Args:
        reactor: the running reactor.
        audience: the value of `aud` in its tokens.
    """

    def __init__(self, reactor: AnyReactor, *, audience: str = "https://api.example") -> None:
        self.audience = audience
        self._key = make_key()
        endpoints = Endpoints()
        endpoints.by_path = {
            OPENID_PATH: lambda _: Answer({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}),
            "/keys": lambda _: Answer({"keys": [self._key.as_dict(private=False)]}),
        }
        super().__init__(reactor, endpoints, on_port=True)

    def sign(self, **claims: object) -> str:
        """Return an access token (RFC 9068 §2): one for `alice` that is accepted, but for the given claims.

        Args:
            claims: any claims, such as `sub="bob"`, `scope="read"` or `exp=0`; the accepted token has `iss`, `aud`,
                `sub`, `iat` and `exp`. A claim that is None is left out.
        """
        now = int(time.time())
        defaults = {"iss": self.url, "aud": self.audience, "sub": "alice", "iat": now, "exp": now + LIFETIME_S}
        signed = {name: value for name, value in {**defaults, **claims}.items() if value is not None}
        return jwt.encode({"typ": "at+jwt", "alg": "ES256", "kid": self._key.kid}, signed, self._key)

    def trusted(self, **options: Any) -> TrustedIssuer:
        """Return the result of `postd.protect.issuer` with these options, for `Protection(issuers=[...])`."""
        return issuer(self.url, **{"audience": self.audience, **options})
