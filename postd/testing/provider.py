"""An OpenID provider on loopback (`Provider`)."""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry
from twisted.web.server import Request

from postd.client import SignInError
from postd.protect import TrustedProvider, provider
from postd.protocol.base64url import encode_base64url
from postd.protocol.discovery import OPENID_PATH
from postd.reactor import AnyReactor
from postd.testing.credentials import Fields
from postd.testing.endpoints import Answer, Endpoints
from postd.testing.faults import FAULTS, LOGOUT_EVENT, Grant, Pairs, Token, make_key
from postd.testing.serving import FactoryServer, Server

LIFETIME_S = 600

T = TypeVar("T")


class Provider(Server):
    """An OpenID provider with a new key (ES256), at a free port of 127.0.0.1; its issuer identifier is its `url`.

    It signs `user` in at once, without a page: authorization code flow with PKCE (S256), `nonce` and `state`, which it
    requires, and `iss` in the authorization response. It has UserInfo, an `end_session_endpoint` and back-channel
    logout.

    Example::

        async with Provider(reactor) as provider, Protection(reactor, providers=[provider.trusted()]) as protection:
            async with Server(reactor, protection.pages()) as server:
                session = await provider.sign_in_at(server)
                response = await server.client().get(server.url, headers=session, allow_redirects=False)
                print(response.headers.getRawHeaders("Location"))  # ['/']

    Args:
        reactor: the running reactor.
        client_id: the client identifier of the application.
        client_secret: its secret, for `client_secret_basic` and `client_secret_post`; "" for a public client.
        client_key: its public key as a JWK, for `private_key_jwt`.

    Attributes:
        user: the `sub` of the user who is signed in.
        id_token_claims: further claims of ID tokens, which replace others; a claim that is None is left out.
        userinfo: further claims of UserInfo responses.
        error: the error in authorization responses, such as "access_denied"; "" for none.
        FAULTS: the names of all faults, each with the section of the specification that has the rule.
        client_auth: the accepted methods of client authentication.
        requests: the endpoint and the parameters of each request, in order: "authorization", "token", "userinfo" and
            "end_session".
        sessions: the user of each session at the provider, by `sid`.
    """

    FAULTS: ClassVar[Mapping[str, str]] = {name: rule for name, (rule, _) in FAULTS.items()}

    def __init__(
        self,
        reactor: AnyReactor,
        *,
        client_id: str = "app",
        client_secret: str = "",
        client_key: Mapping[str, str | list[str]] | None = None,
    ) -> None:
        self.client_id = client_id
        self.id = "provider"
        self._client_secret = client_secret
        self._client_key = None if client_key is None else JWKRegistry.import_key(dict(client_key))
        self.client_auth = ["client_secret_basic", "client_secret_post"] if client_secret else ["none"]
        if client_key is not None:
            self.client_auth = ["private_key_jwt"]
        self.user = "alice"
        self.id_token_claims: dict[str, object] = {}
        self.userinfo: dict[str, object] = {"name": "Alice"}
        self.error = ""
        self._fault = ""
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.sessions: dict[str, str] = {}
        self._key = make_key()
        self._grants: dict[str, Grant] = {}
        self._users: dict[str, str] = {}
        self._hints: dict[str, str] = {}
        self._assertions: set[str] = set()
        endpoints = Endpoints()
        endpoints.by_path = {
            OPENID_PATH: lambda _: self._changed("metadata", Answer(self._metadata())),
            "/keys": lambda _: self._changed("keys", Answer({"keys": [self._key.as_dict(private=False)]})),
            "/authorize": self._authorize,
            "/token": lambda request: self._changed("token", self._give_tokens(request)),
            "/userinfo": lambda request: self._changed("userinfo", self._tell_user(request)),
            "/logout": self._end_session,
        }
        super().__init__(reactor, endpoints, on_port=True)

    @property
    def fault(self) -> str:
        """The rule that is broken, a name in `FAULTS`; "" for none."""
        return self._fault

    @fault.setter
    def fault(self, name: str) -> None:
        if name and name not in FAULTS:
            raise ValueError(f"fault: expected a name in Provider.FAULTS, got {name!r}")
        self._fault = name

    def trusted(self, provider_id: str = "provider", **options: Any) -> TrustedProvider:
        """Return the result of `postd.protect.provider` with these options, for `Protection(providers=[...])`.

        Args:
            provider_id: its id in the URLs of the form.
            options: further options; a provider with `client_secret` or `client_key` needs `client_secret_file` or
                `client_key_file`.
        """
        self.id = provider_id
        return provider(provider_id, self.url, **{"name": "Provider", "client_id": self.client_id, **options})

    async def sign_in_at(self, server: FactoryServer, *, path: str = "/") -> Fields:
        """Sign `user` in at a server, as a browser does, and return the field `Cookie` of the session.

        Args:
            server: the application.
            path: the path of the form, the `sign_in` of a `Protection`.

        Raises:
            SignInError: no session begins.
        """
        url = f"{server.url}{path.rstrip('/')}/login/{self.id}"
        client = server.client()
        begun = await client.get(url, allow_redirects=False)
        cookies = "; ".join(cookie.partition(";")[0] for cookie in begun.headers.getRawHeaders("Set-Cookie", []))
        await begun.content()
        if begun.code != 302:
            raise SignInError(f"{url} answers {begun.code}, and no sign-in has begun")
        back = self.authorize(begun.headers.getRawHeaders("Location", [""])[0])
        pending: Fields = {"Cookie": cookies}
        ended = await client.get(back, headers=pending, allow_redirects=False)
        await ended.content()
        given = [cookie.partition(";")[0] for cookie in ended.headers.getRawHeaders("Set-Cookie", [])]
        session = [cookie for cookie in given if cookie.startswith("session=") and cookie != "session="]
        if ended.code >= 400 or not session:
            raise SignInError(f"the callback answers {ended.code}, and no session has begun")
        return {"Cookie": session[0]}

    async def log_out_at(self, server: FactoryServer, token: str = "", *, path: str = "/") -> int:
        """Send a logout token to a server (OpenID Connect Back-Channel Logout 1.0 §2.5); return its status.

        Args:
            server: the application.
            token: the token; by default one that ends the newest session.
            path: the path of the form.
        """
        form: Pairs = [("logout_token", token or self.logout_token())]
        url = f"{server.url}{path.rstrip('/')}/login/{self.id}/back-channel-logout"
        body = urlencode(self._changed("logout", form)).encode()
        headers: Fields = {"Content-Type": "application/x-www-form-urlencoded"}
        response = await server.client().post(url, data=body, headers=headers)
        await response.content()
        return int(response.code)

    def rotate_key(self) -> None:
        """Replace the key, in the key set, too."""
        self._key = make_key()

    def authorize(self, url: str) -> str:
        """Answer an authentication request: return the URL to which the browser is redirected.

        Args:
            url: the URL of the request, to which the application redirects the browser.

        Raises:
            ValueError: the request is not valid.
        """
        asked = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        self.requests.append(("authorization", asked))
        _check_asked(asked, self.client_id)
        answer: Pairs = [("error", self.error)] if self.error else [("code", self._new_code(asked))]
        answer += [("state", asked["state"]), ("iss", self.url)]
        uri = asked["redirect_uri"]
        return f"{uri}{'&' if '?' in uri else '?'}{urlencode(self._changed('authorization', answer))}"

    def logout_token(self, **claims: object) -> str:
        """Return a logout token: one that ends the newest session, but for the given claims.

        Args:
            claims: any claims, such as `sub="bob"` or `sid=None`; a claim that is None is left out.
        """
        now = int(time.time())
        sid, sub = next(reversed(self.sessions.items()))
        defaults: dict[str, object] = {"iss": self.url, "aud": self.client_id, "iat": now, "exp": now + LIFETIME_S}
        defaults |= {"jti": secrets.token_urlsafe(), "sub": sub, "sid": sid, "events": {LOGOUT_EVENT: {}}}
        return self._encode("logout_token", "logout+jwt", {**defaults, **claims})

    def _metadata(self) -> dict[str, object]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/logout",
            "jwks_uri": f"{self.url}/keys",
            "scopes_supported": ["openid", "profile"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
            "token_endpoint_auth_methods_supported": self.client_auth,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "backchannel_logout_supported": True,
            "backchannel_logout_session_supported": True,
        }

    def _authorize(self, request: Request) -> Answer:
        try:
            return _redirect(self.authorize(request.uri.decode("ascii")))
        except ValueError as error:
            return Answer(str(error).encode(), 400)

    def _new_code(self, asked: Mapping[str, str]) -> str:
        code, sid = secrets.token_urlsafe(), secrets.token_urlsafe()
        self._grants[code] = self._changed("grant", Grant(asked, self.user, sid, asked["code_challenge"]))
        self.sessions[sid] = self.user
        return code

    def _give_tokens(self, request: Request) -> Answer:
        form = _form(request)
        self.requests.append(("token", form))
        if not self._is_client(request, form):
            return Answer({"error": "invalid_client"}, 401)
        grant = self._grants.pop(form.get("code", ""), None)
        challenge = encode_base64url(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (
            grant is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != grant.asked["redirect_uri"]
            or grant.challenge not in {"", challenge}
        ):
            return Answer({"error": "invalid_grant"}, 400)
        access = secrets.token_urlsafe()
        self._users[access] = grant.sub
        id_token = self._id_token(grant, access)
        self._hints[id_token] = grant.sid
        body = {"access_token": access, "token_type": "Bearer", "expires_in": LIFETIME_S, "id_token": id_token}
        return Answer(body, headers={"Cache-Control": "no-store"})

    def _id_token(self, grant: Grant, access: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": self.client_id,
            "sub": grant.sub,
            "sid": grant.sid,
            "iat": now,
            "exp": now + LIFETIME_S,
            "auth_time": now,
            "nonce": grant.asked["nonce"],
            "at_hash": encode_base64url(hashlib.sha256(access.encode()).digest()[:16]),
            **self.id_token_claims,
        }
        return self._encode("id_token", "JWT", claims)

    def _encode(self, stage: str, token_type: str, claims: dict[str, object]) -> str:
        header: dict[str, object] = {"typ": token_type, "alg": "ES256", "kid": self._key.kid}
        return self._changed(stage, Token(header, claims, self._key, self._client_secret.encode())).encode()

    def _is_client(self, request: Request, form: Mapping[str, str]) -> bool:
        """Return whether a request has the client's credentials, by one of the accepted methods, and by one alone."""
        basic = request.getHeader("Authorization") or ""
        used = {
            "client_secret_basic": basic != "",
            "client_secret_post": "client_secret" in form,
            "private_key_jwt": "client_assertion" in form,
        }
        methods = [name for name, is_used in used.items() if is_used] or ["none"]
        if len(methods) > 1 or methods[0] not in self.client_auth:
            return False
        match methods[0]:
            case "client_secret_basic":
                pair = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
                client, secret = unquote_plus(pair[0]), unquote_plus(pair[2])
                return (client, secret) == (self.client_id, self._client_secret)
            case "client_secret_post":
                return (form.get("client_id"), form["client_secret"]) == (self.client_id, self._client_secret)
            case "private_key_jwt":
                return self._is_assertion(form)
            case _:
                return form.get("client_id") == self.client_id

    def _is_assertion(self, form: Mapping[str, str]) -> bool:
        """Return whether a request has a good assertion (RFC 7523 §3)."""
        if form.get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer":
            return False
        assert self._client_key is not None, "private_key_jwt needs client_key"
        try:
            claims = jwt.decode(form["client_assertion"], self._client_key).claims
        except JoseError:
            return False
        jti = str(claims.get("jti"))
        is_new = jti not in self._assertions
        self._assertions.add(jti)
        return (
            is_new
            and claims.get("iss") == claims.get("sub") == self.client_id
            and claims.get("aud") in (self.url, [self.url])
            and claims.get("exp", 0) > time.time()
        )

    def _tell_user(self, request: Request) -> Answer:
        self.requests.append(("userinfo", {}))
        sub = self._users.get((request.getHeader("Authorization") or "").removeprefix("Bearer "))
        if sub is None:
            return Answer(status=401, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
        return Answer({"sub": sub, **self.userinfo})

    def _end_session(self, request: Request) -> Answer:
        """End a session (OpenID Connect RP-Initiated Logout 1.0 §2)."""
        asked = dict(parse_qsl(urlsplit(request.uri.decode("ascii")).query)) | _form(request)
        self.requests.append(("end_session", asked))
        sid = self._hints.get(asked.get("id_token_hint", ""), "")
        if sid not in self.sessions or asked.get("client_id") != self.client_id:
            return Answer(b"Not a session of this client", 400)
        del self.sessions[sid]
        return _redirect(asked.get("post_logout_redirect_uri", self.url))

    def _changed(self, stage: str, made: T) -> T:
        """Return what a stage has made, with the fault if that is one of the stage."""
        if self.fault.partition(":")[0] == stage:
            _, change = FAULTS[self.fault]
            change(made)
        return made


def _check_asked(asked: Mapping[str, str], client_id: str) -> None:
    """Check an authentication request (OpenID Connect Core 1.0 §3.1.2.1, RFC 7636 §4.3).

    Raises:
        ValueError: a parameter is missing or has another value.
    """
    expected = {"response_type": "code", "client_id": client_id, "code_challenge_method": "S256"}
    for name, value in expected.items():
        if asked.get(name) != value:
            raise ValueError(f"{name}: expected {value!r}, got {asked.get(name)!r}")
    for name in ("redirect_uri", "state", "nonce", "code_challenge"):
        if not asked.get(name):
            raise ValueError(f"{name}: missing")
    if "openid" not in asked.get("scope", "").split():
        raise ValueError("scope: expected openid")


def _redirect(url: str) -> Answer:
    return Answer(status=302, headers={"Location": url})


def _form(request: Request) -> dict[str, str]:
    """Return the parameters in the body of a request."""
    body = request.content.read() if request.content else b""
    return dict(parse_qsl(body.decode(), keep_blank_values=True))
