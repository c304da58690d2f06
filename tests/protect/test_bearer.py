"""Bearer over HTTP: exact challenges, malformed tokens, and responses while the keys are unavailable."""

import json
import re
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.web.resource import Resource

from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.jwks import WAIT_MAX_S, KeySource
from postd.auth.portal import CoroutinePortal
from postd.http.peer import PeerResolver
from postd.protect import identity
from postd.protect.bearer import METADATA_PATH, AcceptedTokens
from postd.protect.guard import AUTHORIZATION_MAX_BYTES, Guard, OpenGuard, ProtectedResource, Realm
from postd.protect.mounted import MountedResources
from postd.protocol.jwk import KeySet, SigningKey, decode_key_set
from postd.protocol.jwt import Jwt, TokenPolicy
from postd.reactor import IReactor
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, make_site
from tests.issuer import ABSENT, Key, Mint
from tests.protect.test_guard import check_authenticated, check_without_challenge
from tests.web.clients import (
    ask_raw,
    basic,
    challenges_in,
    check_secret,
    recorded_log,
)
from tests.web.test_posts import check_problem
from tests.web.wire import Worker, ask, begin

ISSUER, AUDIENCE = "https://idp.example", "https://posts.example"
ISSUERS = f"""
[[bearer]]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
"""
RULES = """
[api]
read = ["bearer"]
write = ["basic", "bearer", "digest"]
[[page]]
path = "/bearer"
schemes = ["bearer"]
[[page]]
path = "/all"
schemes = ["basic", "bearer", "digest"]
[[page]]
path = "/basic"
schemes = ["basic"]
"""
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "FOO"]
INVALID = 'error="invalid_token", error_description="The access token is invalid", '

KEY = Key.make("ES256", "the-key")
MINT = Mint(ISSUER, AUDIENCE, KEY, now=time.time)


def challenge(error: str = "", *, realm: str = "postd", origin: str = "http://localhost") -> str:
    return f'Bearer realm="{realm}", {error}resource_metadata="{origin}{METADATA_PATH}"'


def bearer(token: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def check_challenged(answer: Response, *lines: str) -> None:
    """Check a 401 with these challenges and no other."""
    assert answer.status == 401
    assert [of_origin(line) for line in answer.headers["www-authenticate"]] == list(lines)
    assert answer.header("Cache-Control") == "no-store"


def of_origin(line: str) -> str:
    """Return a challenge with the metadata of the origin in place of the resource's, which `Protection` has not."""
    return re.sub(f'{METADATA_PATH}[^"]*', METADATA_PATH, line)


def remove_variable_fields(answer: Response) -> None:
    """Remove the values that differ between responses: the date, the request id and nonces."""
    forget_own(answer)
    lines = answer.headers.get("www-authenticate", [])
    answer.headers["www-authenticate"] = [re.sub('nonce="[^"]*"', "", line) for line in lines]


@pytest.fixture
def api(make: Callable[[str], InMemoryApi]) -> InMemoryApi:
    return make(RULES + ISSUERS)


class ChallengeTests:
    @each("method", METHODS)
    def test_challenge_without_a_token_has_no_error(self, api: InMemoryApi, method: str) -> None:
        """Reference: Bearer, B1; RFC 6750 §3.1, RFC 9728 §5.1."""
        for path in ("/bearer", "/bearer/below", "/bearer?access_token=x"):
            answer = ask(api, method, path)
            check_challenged(answer, challenge())
            assert answer.header("Content-Type") == "text/plain; charset=utf-8"
            assert answer.body == (b"" if method == "HEAD" else b"Unauthorized\n")

    def test_missing_token_on_the_api_is_401_with_problem_details(self, api: InMemoryApi) -> None:
        for path in ("/post", "/post/1", "/post/events"):
            answer = ask(api, "GET", path)
            check_problem(answer, 401)
            check_challenged(answer, challenge())

    @each("headers", [{}, bearer("x"), bearer(""), bearer("a b"), bearer(MINT.token(None, {"alg": "none"}))])
    def test_head_has_the_headers_of_get(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        """Head has the headers of GET (reference: Schemes, G2)."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        for path in ("/bearer", "/all", "/post", METADATA_PATH):
            got, head = (
                ask_raw(api.site, api.clock, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
                for method in ("GET", "HEAD")
            )
            for answer in (got, head):
                remove_variable_fields(answer)
            assert head.header("Content-Length") == str(len(got.body))
            assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    @each("method, path", [("GET", "/all"), ("POST", "/all"), ("POST", "/post"), ("DELETE", "/post/1")])
    @each(
        "headers, error",
        [({}, ""), (basic("unknown"), ""), (bearer("x"), INVALID), ({"Authorization": "Foo x"}, "")],
    )
    def test_challenge_is_between_digest_and_basic(
        self, api: InMemoryApi, method: str, path: str, headers: dict[str, Any], error: str
    ) -> None:
        """Whatever the order of the rule; only the challenge of the attempted scheme has an error (reference: Schemes,
        G3).
        """
        answer = ask(api, method, path, b"{}", headers)
        digest, ours, last = answer.headers["www-authenticate"]
        assert [(one.realm, one.stale) for one in challenges_in(answer)] == [("postd", False)]
        assert digest.startswith("Digest ")
        assert of_origin(ours) == challenge(error)
        assert last == 'Basic realm="postd"'

    def test_challenge_has_the_realm_of_the_settings(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(f"realm = \"The posts of 'x', all\"\n{RULES}{ISSUERS}")
        check_challenged(ask(api, "GET", "/bearer"), challenge(realm="The posts of 'x', all"))
        check_challenged(
            ask(api, "GET", "/bearer", headers=bearer("x")), challenge(INVALID, realm="The posts of 'x', all")
        )

    def test_challenge_names_the_metadata_of_its_path(self, api: InMemoryApi) -> None:
        """RFC 9728 §3.1, §5.1."""
        for path, of in (
            ("/bearer", "/bearer"),
            ("/bearer/below", "/bearer"),
            ("/post", "/post"),
            ("/post/1", "/post"),
        ):
            (line,) = ask(api, "GET", path).headers["www-authenticate"]
            assert line == f'Bearer realm="postd", resource_metadata="http://localhost{METADATA_PATH}{of}"'
            shown = json.loads(ask(api, "GET", METADATA_PATH + of).body)
            assert (shown["resource"], shown["authorization_servers"]) == (f"http://localhost{of}", [ISSUER])
        assert json.loads(ask(api, "GET", METADATA_PATH).body)["resource"] == "http://localhost"
        for path in ("/basic", "/bearer/below", "/", "//bearer", "/posts", "/home"):
            check_problem(ask(api, "GET", METADATA_PATH + path), 404)

    def test_challenge_names_the_scope_that_is_needed(self, make: Callable[[str], InMemoryApi]) -> None:
        """RFC 6750 §3: a resource's own, else that of the issuers if all have the same."""
        own = '[[page]]\npath = "/own"\nschemes = ["bearer"]\nread_scope = "own:read"\n'
        scopes = 'read_scope = "posts:read"\nwrite_scope = "posts:write posts:read"\n'
        api = make(RULES + own + ISSUERS + scopes)

        def scope(method: str, path: str) -> str | None:
            lines = ask(api, method, path).headers["www-authenticate"]
            (line,) = (line for line in lines if line.startswith("Bearer "))
            found = re.fullmatch(r'Bearer realm="postd"(?:, scope="([^"]*)")?, resource_metadata="[^"]*"', line)
            assert found
            return found[1]

        assert scope("GET", "/bearer") == "posts:read"
        assert scope("GET", "/own") == "own:read"
        assert scope("POST", "/own") == "posts:write posts:read"
        assert scope("POST", "/post") == "posts:write posts:read"
        api = make(RULES + ISSUERS + scopes + ISSUERS.replace(ISSUER, "https://another.example"))
        assert scope("GET", "/bearer") is None

    def test_rule_without_bearer_has_no_bearer_challenge(self, api: InMemoryApi) -> None:
        """Even for a request with a token."""
        for headers in ({}, bearer("x"), bearer(MINT.token()), basic("unknown")):
            check_challenged(ask(api, "GET", "/basic", headers=headers), 'Basic realm="postd"')

    def test_credentials_of_another_scheme_are_401_without_an_error(self, api: InMemoryApi) -> None:
        for headers in (basic(), {"Authorization": "Digest x"}, {"Authorization": ""}, {"Authorization": "x"}):
            check_challenged(ask(api, "GET", "/bearer", headers=headers), challenge())

    def test_basic_is_accepted_by_a_rule_with_bearer(self, api: InMemoryApi) -> None:
        check_authenticated(ask(api, "GET", "/all", headers=basic()))

    def test_challenge_without_issuers_has_no_resource_metadata(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(RULES)
        check_challenged(ask(api, "GET", "/bearer"), 'Bearer realm="postd"')
        for token in ("x", MINT.token()):
            answer = ask(api, "GET", "/bearer", headers=bearer(token))
            check_challenged(answer, f'Bearer realm="postd", {INVALID.removesuffix(", ")}')

    def test_resource_metadata_has_the_origin_of_the_request(self, api: InMemoryApi) -> None:
        for host, origin in (
            ("posts.example:8080", "http://posts.example:8080"),
            ("Posts.Example", "http://posts.example"),
        ):
            check_challenged(ask(api, "GET", "/bearer", headers={"Host": host}), challenge(origin=origin))
        check_challenged(ask(api, "GET", "/bearer", tls=True), challenge(origin="https://localhost"))


class TokenTests:
    @each(
        "value",
        [
            *(
                "Bearer",
                "Bearer ",
                "Bearer \t",
                "Bearer a b",
                "Bearer a, b",
                "Bearer a,b",
                "Bearer a;b",
                "Bearer =",
                "Bearer a=b",
            ),
            *(
                'Bearer "a"',
                "Bearer token=a",
                "Bearer Bearer a",
                "Bearer a:b",
                "Bearer a%20b",
                "Bearer {}",
                "Bearer a\\b",
            ),
            *(b"Bearer \xff", "Bearer t\u00f6ken".encode(), b"Bearer a\xa0b", "Bearer a\tb", "bearer <a>", "BEARER *"),
        ],
    )
    def test_malformed_token_is_401(self, api: InMemoryApi, value: str | bytes) -> None:
        """Never 400, never 500 (reference: Bearer, B3, B4)."""
        for path in ("/bearer", "/post"):
            check_challenged(ask(api, "GET", path, headers={"Authorization": value}), challenge(INVALID))

    @each(
        "token",
        [
            *("x", "x.y", "x.y.z", "e30.e30.", "a" * 8000, "." * 8000, "..", "....", "x=", "e30.e30.x", "~", "a/b+c"),
            MINT.token(None, {"alg": "none"}),
            MINT.token(None, {"alg": "HS256"}),
            MINT.token(None, {"typ": "logout+jwt"}),
            MINT.token(None, {"crit": []}),
            MINT.token(iss="https://elsewhere.example"),
            MINT.token(iss=ABSENT),
            MINT.token().rpartition(".")[0],
            MINT.token() + "=",
            MINT.token() + ".x.y",
        ],
    )
    def test_token_that_no_key_could_verify_is_401_without_keys(self, api: InMemoryApi, token: str) -> None:
        """Opaque tokens as well: no introspection is configured."""
        with recorded_log(api) as events:
            answer = ask(api, "GET", "/bearer", headers=bearer(token))
            check_challenged(answer, challenge(INVALID))
            if len(token) > 3:
                assert token not in answer.body.decode()
        refusals = [event for event in events if "login refused" in event["log_format"]]
        assert [(event["scheme"], event["user"], event["address"]) for event in refusals] == [
            ("bearer", "-", "127.0.0.1")
        ]
        assert refusals[0]["why"]
        if len(token) > 8:
            check_secret(events, *[part for part in token.split(".") if len(part) > 8])

    @pytest.mark.parametrize("scheme", ["bearer", "BEARER", "BeArEr"])
    def test_scheme_is_case_insensitive_and_followed_by_white_space(self, api: InMemoryApi, scheme: str) -> None:
        """Scheme is case insensitive and followed by white space (reference: Schemes, G5, G6)."""
        for space in (" ", "  ", "\t", " \t "):
            answer = ask(api, "GET", "/bearer", headers={"Authorization": f"{scheme}{space}x"})
            check_challenged(answer, challenge(INVALID))

    @each("values", [("Bearer x", "Bearer x"), ("Bearer x", "Basic eA=="), ("Basic eA==", "Bearer x")])
    def test_repeated_field_is_400(self, api: InMemoryApi, values: tuple[str, str]) -> None:
        """Repeated field is 400 (reference: Bearer, B5)."""
        for path in ("/bearer", "/all", "/post"):
            check_without_challenge(ask(api, "GET", path, headers={"Authorization": values}), 400)

    def test_field_over_the_limit_is_431(self, api: InMemoryApi) -> None:
        """Field over the limit is 431 (reference: Bearer, B25)."""
        room = AUTHORIZATION_MAX_BYTES - len("Bearer ")
        for path in ("/bearer", "/post"):
            check_challenged(ask(api, "GET", path, headers=bearer("a" * room)), challenge(INVALID))
            check_without_challenge(ask(api, "GET", path, headers=bearer("a" * (room + 1))), 431)

    def test_token_outside_the_authorization_field_is_ignored(self, api: InMemoryApi) -> None:
        """Reference: Bearer, B6, B7; RFC 9700 §4.3.2."""
        token = MINT.token()
        with recorded_log(api) as events:
            for method, path, body, headers in (
                ("GET", f"/bearer?access_token={token}", None, {}),
                (
                    "POST",
                    "/post",
                    f"access_token={token}".encode(),
                    {"Content-Type": "application/x-www-form-urlencoded"},
                ),
                ("GET", "/bearer", None, {"Cookie": f"access_token={token}; session={token}"}),
                ("GET", "/bearer", None, {"Proxy-Authorization": f"Bearer {token}"}),
                ("GET", "/bearer", None, {"X-Access-Token": token, "Authentication": f"Bearer {token}"}),
            ):
                answer = ask(api, method, path, body, headers)
                assert answer.status == 401
                assert challenge() in map(of_origin, answer.headers["www-authenticate"])
        check_secret(events, token)

    def test_any_value_is_401(self, api: InMemoryApi) -> None:
        @given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40))
        def check(text: str) -> None:
            answer = ask(api, "GET", "/bearer", headers={"Authorization": b"Bearer " + text.encode("latin-1")})
            check_challenged(answer, challenge(INVALID))

        check()


class UnavailableKeysTests:
    """A token that may be valid is not refused while it cannot be verified (reference: Bearer, B26)."""

    def response_to_valid_token(self, api: InMemoryApi, method: str, path: str, **more: Any) -> Response:
        """Return the response to a valid token, after the longest wait for keys."""
        asked = begin(api, method, path, headers={**bearer(MINT.token(**more)), "X-Test": "x"})
        api.clock.advance(WAIT_MAX_S)
        api.clock.advance(WAIT_MAX_S)
        return asked.response()

    @each("method", METHODS[:-2])
    def test_valid_token_is_503_with_retry_after(self, api: InMemoryApi, method: str) -> None:
        for path in ("/bearer", "/all", "/bearer/below"):
            answer = self.response_to_valid_token(api, method, path)
            check_without_challenge(answer, 503)
            assert int(answer.header("Retry-After") or 0) >= 1
            assert answer.header("Content-Type") == "text/plain; charset=utf-8"
            assert answer.header("Cache-Control") == "no-store"

    def test_valid_token_on_the_api_is_503_with_problem_details(self, api: InMemoryApi) -> None:
        for method, path in (("GET", "/post"), ("GET", "/post/1"), ("POST", "/post"), ("DELETE", "/post/1")):
            answer = self.response_to_valid_token(api, method, path)
            check_without_challenge(answer, 503)
            assert int(answer.header("Retry-After") or 0) >= 1
            check_problem(answer, 503)
            assert ISSUER.encode() not in answer.body

    def test_token_with_invalid_claims_is_503_until_its_signature_can_be_verified(self, api: InMemoryApi) -> None:
        """Claims are not trusted before: not even that it has expired."""
        for claims in ({"exp": 1}, {"aud": "x"}, {"sub": ABSENT}):
            check_without_challenge(self.response_to_valid_token(api, "GET", "/bearer", **claims), 503)

    def test_basic_is_accepted(self, api: InMemoryApi) -> None:
        check_without_challenge(self.response_to_valid_token(api, "GET", "/all"), 503)
        check_authenticated(ask(api, "GET", "/all", headers=basic()))

    def test_disconnect_while_waiting_for_keys_logs_no_error(self, api: InMemoryApi) -> None:
        with recorded_log(api) as events:
            asked = begin(api, "GET", "/bearer", headers=bearer(MINT.token()))
            asked.disconnect()
            for _ in range(3):
                api.clock.advance(WAIT_MAX_S)
        assert not [event for event in events if event["log_level"] >= LogLevel.error]
        check_secret(events, MINT.token().rpartition(".")[2])


class FixedKeySource(KeySource):
    """A key source whose keys are always available."""

    current: KeySet

    def __init__(self, keys: KeySet) -> None:
        self.current = keys

    async def find(self, jwt: Jwt) -> list[SigningKey]:
        return self.current.find(jwt)


class ShownAccount(Resource):
    """The protected resource: its body is the account of the request."""

    isLeaf = True

    def render(self, request: Any) -> bytes:
        client = identity(request)
        return b"no one" if client is None else client.account.encode()


def make_server(
    *, read: str = "", write: str = "", users: frozenset[str] = frozenset(), make_guard: type[Guard] = Guard
) -> Worker:
    """Make a server with the keys of `MINT` and the given scopes."""
    clock = Clock()
    clock.rightNow = MINT.now()
    policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
    issuer = Issuer(policy, reactor=cast(IReactor, clock), read_scope=read, write_scope=write, now=clock.seconds)
    issuer.keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
    clients = PeerResolver()
    tokens = AcceptedTokens("postd", [issuer], MountedResources())
    tokens.with_metadata = True
    portal = CoroutinePortal(Realm(), [BearerChecker([issuer], now=clock.seconds)])
    guard = make_guard(
        portal, tokens.make_factories(ProtectedResource(clients)), ShownAccount(), clients=clients, users=users
    )
    return Worker(make_site(guard, clock=clock), clock)


class AvailableKeysTests:
    @each("method", METHODS)
    def test_valid_token_is_accepted(self, method: str) -> None:
        """Valid token is accepted (reference: Bearer, B2)."""
        answer = ask(make_server(), method, "/", headers=bearer(MINT.token()))
        assert (answer.status, answer.headers.get("www-authenticate")) == (200, None)
        assert answer.body == (b"" if method == "HEAD" else f"{ISSUER}#alice".encode())

    def test_token_is_checked_where_none_is_required(self) -> None:
        server = make_server(write="post:write", make_guard=OpenGuard)
        cross_site = {"Sec-Fetch-Site": "cross-site"}  # a browser sends no token by itself
        for method, headers, status, body in (
            ("GET", {}, 200, b"no one"),
            ("GET", bearer(MINT.token()), 200, f"{ISSUER}#alice".encode()),
            ("POST", bearer(MINT.token(scope="post:write")) | cross_site, 200, f"{ISSUER}#alice".encode()),
            ("POST", bearer(MINT.token()), 403, b"Forbidden\n"),
            ("POST", {}, 200, b"no one"),
            ("GET", {"Authorization": "Basic eDp5"}, 200, b"no one"),
        ):
            answer = ask(server, method, "/", headers=headers)
            assert (answer.status, answer.body) == (status, body)
        check_challenged(ask(server, "GET", "/", headers=bearer("x")), challenge(INVALID))

    def test_expired_token_has_an_error_description(self) -> None:
        """Expired token has an error description (reference: Bearer, B3)."""
        server = make_server()
        expired = 'error="invalid_token", error_description="The access token expired", '
        check_challenged(ask(server, "GET", "/", headers=bearer(MINT.token(exp=1))), challenge(expired))
        server.clock.advance(MINT.LIFETIME_S + 31)
        check_challenged(ask(server, "GET", "/", headers=bearer(MINT.token())), challenge(expired))

    def test_expired_token_that_is_otherwise_invalid_has_the_general_error(self) -> None:
        server = make_server()
        signed, _, signature = MINT.token(exp=1).rpartition(".")
        for token in (
            f"{signed}.{signature[::-1]}",
            f"{signed}.",
            MINT.token(Key.make("ES256", "the-key"), exp=1),
            MINT.token(exp=1, aud="x"),
            MINT.token(exp=1, cnf={"jkt": "x"}),
            MINT.token(exp=1, iss=f"{ISSUER}/"),
            MINT.token(None, {"kid": "unknown"}, exp=1),
        ):
            check_challenged(ask(server, "GET", "/", headers=bearer(token)), challenge(INVALID))

    @each("claims", [{"aud": "x"}, {"nbf": 2**40}, {"sub": 5}, {"exp": "x"}, {"cnf": 5}])
    def test_token_with_any_invalid_claim_has_the_general_error(self, claims: dict[str, Any]) -> None:
        check_challenged(ask(make_server(), "GET", "/", headers=bearer(MINT.token(**claims))), challenge(INVALID))

    def test_missing_scope_is_403_with_the_required_scope(self) -> None:
        """Reference: Bearer, B12; RFC 6750 §3.1."""
        server = make_server(read="posts:read", write="posts:read posts:write")
        for method, scope in (("GET", "posts:read"), ("HEAD", "posts:read"), ("POST", "posts:read posts:write")):
            for granted in (ABSENT, "", "posts", "posts:readx", "POSTS:READ", "posts:write"):
                answer = ask(server, method, "/", headers=bearer(MINT.token(scope=granted)))
                assert answer.status == 403
                assert answer.headers["www-authenticate"] == [
                    challenge(f'error="insufficient_scope", scope="{scope}", ')
                ]
                assert answer.header("Content-Type") == "text/plain; charset=utf-8"
                assert answer.header("Cache-Control") == "no-store"
                assert answer.body == (b"" if method == "HEAD" else b"Forbidden\n")

    @each("method", METHODS[:-2])
    def test_reading_and_writing_require_the_scopes_of_the_settings(self, method: str) -> None:
        server = make_server(read="r", write="w x")
        reading = method in {"GET", "HEAD"}
        for scope, enters in (("r", reading), ("w x", not reading), ("x r w", True), ("w", False), ("", False)):
            assert (ask(server, method, "/", headers=bearer(MINT.token(scope=scope))).status == 200) == enters

    def test_owner_outside_the_users_is_403_and_logged(self) -> None:
        server = make_server(users=frozenset({f"{ISSUER}#alice", "bob", "https://elsewhere.example#carol"}))
        assert ask(server, "GET", "/", headers=bearer(MINT.token())).status == 200
        for name in ("bob", "carol", "x#alice", "elsewhere.example#carol", "Alice"):
            answer = ask(server, "GET", "/", headers=bearer(MINT.token(sub=name)))
            check_without_challenge(answer, 403)
