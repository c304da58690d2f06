"""Cross-site writes and WebSocket handshakes, by the credentials that they use (reference: Form login, F11)."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from postd.auth.jwks import KeySource
from postd.protocol.jwk import decode_key_set
from tests.cases import each
from tests.helpers import InMemoryApi
from tests.issuer import Key, Prover
from tests.protect.errors import check_text_error
from tests.protect.test_bearer import ISSUERS, MINT, FixedKeySource, bearer
from tests.protect.test_guard import check_without_challenge, log_in
from tests.web.clients import Proof, basic, challenges_in, recorded_log
from tests.web.test_posts import check_problem
from tests.web.wire import ask

SCHEMES = '["digest", "bearer", "basic", "session"]'
RULES = f"""
[api]
read = {SCHEMES}
write = {SCHEMES}
[[page]]
path = "/all"
schemes = {SCHEMES}
[[page]]
path = "/basic"
schemes = ["basic"]
[throttle]
failures = 1
"""
NAMED = "https://app.example"
JSON = {"Content-Type": "application/json"}
BODY = b'{"post":"x"}'

CROSS_SITE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://blog.localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "capacitor://localhost"},
    {"Origin": "chrome-extension://localhost"},
]
HANDSHAKES: list[Mapping[str, str]] = [
    {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "eA=="},
    {"Connection": "Upgrade", "Upgrade": "h2c, WebSocket"},
    {"Sec-WebSocket-Version": "13"},  # of HTTP/2, or by a proxy that does not pass Upgrade on
]

Send = Callable[..., dict[str, Any]]


@pytest.fixture
def api(make: Callable[..., InMemoryApi], monkeypatch: pytest.MonkeyPatch) -> InMemoryApi:
    keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
    monkeypatch.setattr(KeySource, "find", keys.find)
    return make(RULES + ISSUERS + 'dpop = "accept"\n')


def send_basic(_api: InMemoryApi, _method: str, _path: str) -> dict[str, Any]:
    return basic()


def send_digest(api: InMemoryApi, method: str, path: str) -> dict[str, Any]:
    nonce = challenges_in(ask(api, method, path))[0].nonce
    return Proof(nonce=nonce, method=method, uri=path).headers()


def send_session(api: InMemoryApi, _method: str, _path: str) -> dict[str, Any]:
    return log_in(api)


def send_bearer(_api: InMemoryApi, _method: str, _path: str) -> dict[str, Any]:
    return bearer(MINT.token())


def send_dpop(_api: InMemoryApi, method: str, path: str) -> dict[str, Any]:
    prover = Prover(Key.make("ES256"), now=time.time)
    token = MINT.token(cnf=prover.confirmation)
    proof = prover.prove(method, f"http://localhost{path}", token)
    return {"Authorization": f"DPoP {token}", "DPoP": proof}


AMBIENT = pytest.mark.parametrize("send", [send_basic, send_digest, send_session])
EXPLICIT = pytest.mark.parametrize("send", [send_bearer, send_dpop])


class WriteTests:
    @AMBIENT
    @each("fields", CROSS_SITE)
    def test_cross_site_write_with_what_browsers_send_is_403(
        self, api: InMemoryApi, send: Send, fields: dict[str, Any]
    ) -> None:
        for method, path in (("POST", "/post"), ("PUT", "/post/1"), ("DELETE", "/post/1")):
            answer = ask(api, method, path, BODY, {**JSON, **fields, **send(api, method, path)})
            check_problem(answer, 403)
            check_without_challenge(answer, 403)
        answer = ask(api, "POST", "/all", None, {**fields, **send(api, "POST", "/all")})
        check_text_error(answer, 403)
        check_without_challenge(answer, 403)
        assert ask(api, "GET", "/post", headers=basic()).body == b"[]\n"

    @AMBIENT
    @each("fields", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}])
    def test_write_of_a_program_or_of_the_same_origin_is_processed(
        self, api: InMemoryApi, send: Send, fields: dict[str, Any]
    ) -> None:
        assert ask(api, "POST", "/post", BODY, {**JSON, **fields, **send(api, "POST", "/post")}).status == 201

    @EXPLICIT
    @each("fields", CROSS_SITE)
    def test_cross_site_write_with_a_token_is_processed(
        self, api: InMemoryApi, send: Send, fields: dict[str, Any]
    ) -> None:
        """Browsers send no token by themselves; beside one in `Authorization`, a cookie is not used."""
        for more in ({}, log_in(api)):
            answer = ask(api, "POST", "/post", BODY, {**JSON, **fields, **more, **send(api, "POST", "/post")})
            assert answer.status == 201

    @AMBIENT
    def test_cross_site_read_is_processed(self, api: InMemoryApi, send: Send) -> None:
        headers = {"Sec-Fetch-Site": "cross-site", **send(api, "GET", "/post")}
        assert ask(api, "GET", "/post", headers=headers).body == b"[]\n"

    def test_cross_site_write_without_credentials_is_challenged(self, api: InMemoryApi) -> None:
        for headers in ({}, {"Authorization": "Foo x"}):
            answer = ask(api, "POST", "/post", BODY, {**JSON, **headers, "Sec-Fetch-Site": "cross-site"})
            check_problem(answer, 401)
            assert [line.split()[0] for line in answer.headers["www-authenticate"]] == [
                "Digest",
                "Bearer",
                "DPoP",
                "Basic",
            ]

    def test_cross_site_write_verifies_no_password_and_counts_no_failure(self, api: InMemoryApi) -> None:
        for _ in range(3):
            answer = ask(api, "POST", "/basic", None, {**basic("alice", "wrong"), "Sec-Fetch-Site": "cross-site"})
            assert answer.status == 403
        assert ask(api, "GET", "/basic", headers=basic()).status == 200

    def test_log_has_the_scheme(self, api: InMemoryApi) -> None:
        with recorded_log(api) as events:
            ask(api, "POST", "/all", None, {**basic(), "Sec-Fetch-Site": "cross-site"})
        (line,) = [line for event in events for line in event.get("lines", "").splitlines()]
        assert "route=/all scheme=basic" in line


class NamedOriginTests:
    """Origins in `[api] cors_origins`."""

    @pytest.fixture
    def api(self, make: Callable[..., InMemoryApi]) -> InMemoryApi:
        return make(RULES.replace("[api]", f'[api]\ncors_origins = ["{NAMED}"]').replace('"bearer", ', ""))

    @each("send", [send_basic, send_digest])
    @each("site", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}])
    def test_password_of_a_named_origin_is_accepted(self, api: InMemoryApi, send: Send, site: dict[str, Any]) -> None:
        fields = {**site, "Origin": NAMED}
        answer = ask(api, "POST", "/post", BODY, {**JSON, **fields, **send(api, "POST", "/post")})
        assert (answer.status, answer.header("Access-Control-Allow-Origin")) == (201, NAMED)
        handshake = {**HANDSHAKES[0], **fields, **send(api, "GET", "/all")}
        assert ask(api, "GET", "/all", None, handshake).status == 200

    def test_session_of_a_named_origin_is_refused(self, api: InMemoryApi) -> None:
        answer = ask(api, "POST", "/post", BODY, {**JSON, "Origin": NAMED, **log_in(api)})
        check_problem(answer, 403)
        assert answer.header("Access-Control-Allow-Origin") == NAMED
        handshake = {**HANDSHAKES[0], "Origin": NAMED, **log_in(api)}
        check_text_error(ask(api, "GET", "/all", None, handshake), 403)

    @each(
        "origin",
        [f"{NAMED}:8443", "http://app.example", "https://x.app.example", "null", "*", "", [NAMED, NAMED], f"{NAMED}/"],
    )
    def test_other_origin_is_refused(self, api: InMemoryApi, origin: str | list[str]) -> None:
        check_problem(ask(api, "POST", "/post", BODY, {**JSON, "Origin": origin, **basic()}), 403)

    @pytest.mark.parametrize("origin", [NAMED, "*", "null"])
    def test_star_names_no_origin(self, make: Callable[..., InMemoryApi], origin: str) -> None:
        api = make(RULES.replace("[api]", '[api]\ncors_origins = ["*"]').replace('"bearer", ', ""))
        answer = ask(api, "POST", "/post", BODY, {**JSON, "Origin": origin, **basic()})
        check_problem(answer, 403)
        assert answer.header("Access-Control-Allow-Origin") == "*"


@pytest.mark.parametrize("handshake", HANDSHAKES)
class WebSocketTests:
    """A handshake is a GET, and opens a channel that can write (RFC 6455 §10.2)."""

    @AMBIENT
    @each("fields", CROSS_SITE)
    def test_handshake_of_another_origin_is_403(
        self, api: InMemoryApi, send: Send, handshake: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        answer = ask(api, "GET", "/all", None, {**handshake, **fields, **send(api, "GET", "/all")})
        check_text_error(answer, 403)
        check_without_challenge(answer, 403)

    @AMBIENT
    @each("fields", [{}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}])
    def test_handshake_of_a_program_or_of_the_same_origin_passes(
        self, api: InMemoryApi, send: Send, handshake: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        assert ask(api, "GET", "/all", None, {**handshake, **fields, **send(api, "GET", "/all")}).status == 200

    @EXPLICIT
    def test_handshake_with_a_token_passes(self, api: InMemoryApi, send: Send, handshake: dict[str, Any]) -> None:
        fields = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert ask(api, "GET", "/all", None, {**handshake, **fields, **send(api, "GET", "/all")}).status == 200
