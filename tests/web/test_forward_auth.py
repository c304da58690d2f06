"""Pages with `forward = true`: what a trusted proxy gets for the request that it describes (reference: Gateway)."""

import json
import re
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs, formatEvent

from postd.auth.jwks import KeySource
from postd.http.interface import Request
from postd.protocol.jwk import decode_key_set
from postd.web.forward_auth import DescribedRequest, encode_name, encode_scopes
from tests.cases import each
from tests.helpers import InMemoryApi, Response
from tests.issuer import ABSENT, Key, Prover
from tests.protect.test_bearer import ISSUER, ISSUERS, MINT, FixedKeySource, bearer
from tests.protect.test_login import CHALLENGE, EXPIRED, send_form
from tests.web.clients import PASSWORD, Proof, account, ask_raw, basic, challenges_in, check_secret, recorded_log
from tests.web.test_posts import check_problem
from tests.web.wire import ask

PROXY, CLIENT = "192.0.2.10", "198.51.100.7"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
SETTINGS = (
    f"""
trusted_proxies = ["{PROXY}", "unix"]
public_url = "https://posts.example"
[[page]]
path = "/gate"
schemes = ["digest", "bearer", "basic", "session"]
forward = true
[[page]]
path = "/gate/people"
schemes = ["session"]
forward = true
[[page]]
path = "/gate/bob"
schemes = ["basic", "bearer"]
users = ["bob", "{ISSUER}#carol"]
read_scope = "files:read"
write_scope = "files:write"
forward = true
[throttle]
failures = 3
"""
    + ISSUERS
)

Fields = Mapping[str, Any]


@pytest.fixture
def api(make: Callable[..., InMemoryApi], monkeypatch: pytest.MonkeyPatch) -> InMemoryApi:
    keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
    monkeypatch.setattr(KeySource, "find", keys.find)
    return make(SETTINGS)


def forwarded(method: str = "GET", uri: str = "/a/b?c=d", *, host: str = "app.example") -> dict[str, Any]:
    """Return the fields that Caddy and Traefik send."""
    return {
        "X-Forwarded-Method": method,
        "X-Forwarded-Uri": uri,
        "X-Forwarded-Host": host,
        "X-Forwarded-Proto": "https",
        "X-Forwarded-For": CLIENT,
    }


def original(method: str = "GET", uri: str = "/a/b?c=d") -> dict[str, Any]:
    """Return the fields that nginx sends with the settings in etc/."""
    fields = forwarded()
    del fields["X-Forwarded-Method"], fields["X-Forwarded-Uri"]
    return {"X-Original-Method": method, "X-Original-URI": uri, **fields}


def judge(
    api: InMemoryApi,
    *fields: Fields,
    page: str = "/gate",
    method: str = "GET",
    body: bytes | None = None,
    peer: str = PROXY,
) -> Response:
    """Return the answer to a proxy's request with these fields."""
    headers = {name: value for some in fields for name, value in some.items()}
    return ask(api, method, page, body, headers, peer=peer)


def check_admitted(answer: Response, user: str, scheme: str, scopes: str | None = None) -> None:
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("Cache-Control") == "no-store"
    shown = [answer.header(f"Remote-{name}") for name in ("User", "Scheme", "Scopes")]
    assert shown == [user, scheme, scopes]
    assert answer.headers.get("www-authenticate") is None


def check_refused(answer: Response, status: int) -> None:
    """Check an answer that lets nothing in, and says nothing of anybody."""
    assert answer.status == status
    assert not [name for name in answer.headers if name.startswith("remote-")]
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Authentication-Info") is None


def check_challenged(answer: Response, *schemes: str) -> None:
    check_refused(answer, 401)
    assert tuple(line.partition(" ")[0] for line in answer.headers["www-authenticate"]) == schemes


class TrustTests:
    @each("peer", ["127.0.0.1", CLIENT, "192.0.2.11", "2001:db8::1"])
    @each("page", ["/gate", "/gate/people", "/gate/x", "/gate/"])
    def test_peer_that_is_no_trusted_proxy_is_403(self, api: InMemoryApi, peer: str, page: str) -> None:
        """Before anything else: credentials are not looked at."""
        for fields in ({}, forwarded(), {"X-Forwarded-Uri": ["/", "/"]}, {"Authorization": ["x", "y"]}):
            for method in ("GET", "POST", "OPTIONS"):
                answer = judge(api, fields, basic(), page=page, method=method, peer=peer)
                check_refused(answer, 403)
                assert answer.body == b"Forbidden\n"
        for _ in range(5):
            judge(api, forwarded(), basic("alice", "wrong"), peer=peer)
        check_admitted(judge(api, forwarded(), basic()), "alice", "basic")

    def test_peer_on_a_unix_socket_is_trusted_if_it_is_set(self, api: InMemoryApi) -> None:
        check_admitted(judge(api, forwarded(), basic(), peer="unix"), "alice", "basic")

    def test_client_behind_the_proxy_gains_no_trust_by_its_address(self, api: InMemoryApi) -> None:
        check_refused(judge(api, forwarded(), {"X-Forwarded-For": PROXY}, basic(), peer=CLIENT), 403)


class PageTests:
    @each("page", ["/gate/", "/gate/x", "/gate/people/", "/gate/people/x/y", "/gate//"])
    def test_path_below_a_page_is_404(self, api: InMemoryApi, page: str) -> None:
        check_refused(judge(api, forwarded(), basic(), page=page), 404)
        check_refused(judge(api, forwarded(), page=page), 404)

    @each("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND", "FOO"])
    def test_proxy_may_use_any_method(self, api: InMemoryApi, method: str) -> None:
        for page in ("/gate", "/gate?x=y"):
            check_admitted(judge(api, forwarded(), basic(), page=page, method=method), "alice", "basic")
            check_refused(judge(api, forwarded(), page=page, method=method), 401)

    def test_body_of_the_proxy_is_ignored(self, api: InMemoryApi) -> None:
        check_admitted(judge(api, forwarded("PUT"), basic(), method="POST", body=b"x" * 10_000), "alice", "basic")


class DescriptionTests:
    @each(
        "fields",
        [
            {},
            {"X-Forwarded-Method": "GET"},
            {"X-Forwarded-Uri": "/"},
            {"X-Original-Method": "GET"},
            {"X-Original-URI": "/"},
            {"X-Forwarded-Method": "GET", "X-Original-URI": "/"},
            {"X-Original-Method": "GET", "X-Forwarded-Uri": "/"},
            {**forwarded(), "X-Original-Method": "GET"},
            {**forwarded(), "X-Original-URI": "/a/b?c=d"},
            {**original(), "X-Forwarded-Method": "GET"},
            {**original(), "X-Forwarded-Uri": "/a/b?c=d"},
            {**original("POST"), **forwarded("GET")},
            {**original(uri="/a"), **forwarded(uri="/b")},
            {**original("get"), **forwarded("GET")},
            {**forwarded(), "X-Original-Method": "", "X-Original-URI": ""},
        ],
    )
    def test_absent_or_contradicting_description_is_400(self, api: InMemoryApi, fields: Fields) -> None:
        for page in ("/gate", "/gate/people"):
            answer = judge(api, fields, basic(), page=page)
            check_refused(answer, 400)
            assert answer.headers.get("www-authenticate") is None

    @each("field", [*forwarded(), "X-Original-Method", "X-Original-URI"])
    def test_repeated_field_is_400(self, api: InMemoryApi, field: str) -> None:
        fields = {**original(), **forwarded()}
        check_admitted(judge(api, fields, basic()), "alice", "basic")
        check_refused(judge(api, fields, basic(), {field: [fields[field]] * 2}), 400)
        check_refused(judge(api, fields, basic(), {field: [fields[field], "x"]}), 400)

    @pytest.mark.parametrize("fields", [forwarded(), original(), {**original(), **forwarded()}])
    def test_description_of_each_kind_is_judged(self, api: InMemoryApi, fields: Fields) -> None:
        check_admitted(judge(api, fields, basic()), "alice", "basic")
        bare = {name: value for name, value in fields.items() if name.endswith(("Method", "Uri", "URI"))}
        check_admitted(judge(api, bare, basic()), "alice", "basic")
        lower = {name.lower(): value for name, value in fields.items()}
        check_admitted(judge(api, lower, basic()), "alice", "basic")

    @each(
        "uri",
        [
            *("", "a", "*", "?a", "http://app.example/", "/a b", "/a\tb", "/a\x7f", " /", "\\", "/x "),
            *("https://evil.example", "\xfc", "/\xfc b"),
        ],
    )
    def test_malformed_uri_is_400(self, api: InMemoryApi, uri: str) -> None:
        status = 200 if uri != uri.strip(" ") else 400  # the spaces around a value are none of it
        assert judge(api, forwarded(uri=uri), basic()).status == status
        assert judge(api, original(uri=uri), basic()).status == status

    @each("method", ["", "GET POST", "GET,POST", "G\xc9T", "GET/", '"GET"', "G(T", "\x80"])
    def test_malformed_method_is_400(self, api: InMemoryApi, method: str) -> None:
        check_refused(judge(api, forwarded(method), basic()), 400)
        check_refused(judge(api, original(method), basic()), 400)

    @each("host", ["a b", "a, b", "a/b", "u@a", "[::1", "a:99999", "a:b", "ü", "a\\b"])
    def test_malformed_host_is_400(self, api: InMemoryApi, host: str) -> None:
        check_refused(judge(api, forwarded(host=host), basic()), 400)

    @each("uri", ["/", "//", "//x//y", "/..;/x", "/%00%zz", "/\\", "/?", "/#x", '/<">', "/" + "x" * 8000])
    def test_any_printable_path_is_judged(self, api: InMemoryApi, uri: str) -> None:
        check_admitted(judge(api, forwarded("M-SEARCH", uri), basic()), "alice", "basic")

    def test_any_description_is_judged_or_400(self, api: InMemoryApi) -> None:
        values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12)
        names = st.sampled_from([*forwarded(), "X-Original-Method", "X-Original-URI"])

        @given(st.dictionaries(names, values | st.sampled_from(["GET", "/", "/a", "https"])))
        def check(fields: dict[str, str]) -> None:
            sent = {name: value.encode("latin-1") for name, value in fields.items()}
            assert judge(api, sent, basic()).status in {200, 400}
            assert judge(api, sent).status in {401, 400}

        check()


class HostTests:
    """The described host is one of `hosts` (reference: Hosts)."""

    @each(
        "hosts, host, status",
        [
            ('["app.example"]', "app.example", 200),
            ('["app.example"]', "APP.example.:8443", 200),
            ('["app.example"]', "posts.example", 200),  # of public_url
            ('["app.example"]', "evil.example", 421),
            ('["app.example"]', "evil.example:443", 421),
            ('["app.example"]', "x.app.example", 421),
            ('["app.example"]', "localhost", 421),
            ('["app.example"]', "127.0.0.1", 421),
            ('["192.0.2.1", "::1"]', "[::ffff:192.0.2.1]", 200),
            ('["192.0.2.1", "::1"]', "[0:0::1]:80", 200),
            ('["*"]', "evil.example", 200),
            ("[]", "evil.example", 200),
        ],
    )
    def test_host_that_is_not_allowed_is_421(
        self, make: Callable[..., InMemoryApi], hosts: str, host: str, status: int
    ) -> None:
        api = make(f"hosts = {hosts}\n{SETTINGS.replace(ISSUERS, '')}")
        for describe in (forwarded, original):
            for credentials in (basic(), {}, basic("alice", "wrong"), {"Authorization": ["x", "y"]}):
                answer = judge(api, describe(), {"X-Forwarded-Host": host}, credentials)
                if status == 421:
                    check_problem(answer, 421)
                    check_refused(answer, 421)
                    assert host.encode() not in answer.body
                else:
                    assert answer.status == (200 if credentials == basic() else answer.status) != 421

    def test_refusal_counts_no_failure(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(f'hosts = ["app.example"]\n{SETTINGS}')
        for _ in range(5):
            check_refused(judge(api, forwarded(host="evil.example"), basic("alice", "wrong")), 421)
        check_admitted(judge(api, forwarded(), basic()), "alice", "basic")

    @pytest.mark.parametrize("hosts", ["[]", '["*"]'])
    def test_dpop_needs_a_named_host(self, make: Callable[..., InMemoryApi], hosts: str) -> None:
        """A proof is for a host; with `public_url` alone, that is the only one. Other pages take any host."""
        api = make(f'hosts = {hosts}\n{SETTINGS}dpop = "accept"\n')
        check_problem(judge(api, forwarded(), basic()), 421)
        check_admitted(judge(api, forwarded(host="posts.example"), basic()), "alice", "basic")
        check_challenged(judge(api, forwarded(), page="/gate/people"), "Cookie")

    def test_first_refusal_is_logged(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(f'hosts = ["app.example"]\n{SETTINGS}')
        with capturedLogs() as events:
            for _ in range(3):
                judge(api, forwarded(host="evil.example"))
        (line,) = [formatEvent(event) for event in events if "421" in formatEvent(event)]
        assert line.startswith(f"request described by {PROXY}: 421, its host (12 bytes) is not allowed. ")
        check_secret(events, "evil.example")


class SmuggledFieldTests:
    """What a client sends of fields that a proxy or the answer has."""

    @each(
        "fields",
        [
            *({"Remote-User": "root", "Remote-Scheme": "basic", "Remote-Scopes": "all"}, {"X-Remote-User": "root"}),
            *({"X-Forwarded-User": "root"}, {"REMOTE_USER": "root"}, {"Proxy-Authorization": "Basic YTpi"}),
            *({"Forwarded": "for=192.0.2.10"}, {"X-Real-IP": PROXY}, {"X-HTTP-Method-Override": "GET"}),
        ],
    )
    def test_field_changes_nothing(self, api: InMemoryApi, fields: Fields) -> None:
        check_challenged(judge(api, forwarded(), fields), "Digest", "Bearer", "Basic")
        check_admitted(judge(api, forwarded(), fields, basic()), "alice", "basic")

    def test_client_that_describes_itself_beside_nginx_is_400(self, api: InMemoryApi) -> None:
        for smuggled in ({"X-Forwarded-Uri": "/open"}, {"X-Forwarded-Method": "GET"}, {"X-Forwarded-Uri": ""}):
            check_refused(judge(api, original("DELETE"), smuggled, basic()), 400)

    def test_preflight_is_judged_like_any_other_request(self, api: InMemoryApi) -> None:
        """204, the answer to a preflight elsewhere, would let anybody's OPTIONS in."""
        preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "GET"}
        for method in ("GET", "OPTIONS"):
            answer = judge(api, forwarded("OPTIONS"), preflight, method=method)
            check_challenged(answer, "Digest", "Bearer", "Basic")
        check_admitted(judge(api, forwarded("OPTIONS"), preflight, basic()), "alice", "basic")


class BasicTests:
    @pytest.mark.parametrize("describe", [forwarded, original])
    def test_password_lets_in(self, api: InMemoryApi, describe: Callable[..., Fields]) -> None:
        for method in ("GET", "HEAD", "POST", "DELETE", "PROPFIND"):
            check_admitted(judge(api, describe(method), basic()), "alice", "basic")
        check_challenged(judge(api, describe(), basic("alice", "wrong")), "Digest", "Bearer", "Basic")
        check_challenged(judge(api, describe()), "Digest", "Bearer", "Basic")

    def test_user_outside_the_users_of_a_page_is_403(self, api: InMemoryApi) -> None:
        answer = judge(api, forwarded(), basic(), page="/gate/bob")
        check_refused(answer, 403)
        assert answer.headers.get("www-authenticate") is None
        check_admitted(judge(api, forwarded(), basic("bob"), page="/gate/bob"), "bob", "basic")

    def test_repeated_authorization_is_400(self, api: InMemoryApi) -> None:
        value = basic()["Authorization"]
        check_refused(judge(api, forwarded(), {"Authorization": [value, value]}), 400)

    def test_authorization_over_8_kib_is_431(self, api: InMemoryApi) -> None:
        check_refused(judge(api, forwarded(), {"Authorization": "Basic " + "x" * 9000}), 431)

    def test_failures_count_for_the_client_that_the_proxy_names(self, api: InMemoryApi) -> None:
        for _ in range(3):
            check_refused(judge(api, forwarded(), basic("alice", "wrong")), 401)
        answer = judge(api, original(), basic())
        check_refused(answer, 429)
        assert int(answer.header("Retry-After") or 0) > 0
        assert answer.headers.get("www-authenticate") is None
        check_admitted(judge(api, forwarded(), {"X-Forwarded-For": "198.51.100.8"}, basic()), "alice", "basic")
        forged = {"X-Forwarded-For": f"198.51.100.8, {CLIENT}"}  # what the client sent is left of what the proxy adds
        check_refused(judge(api, forwarded(), forged, basic()), 429)

    def test_store_that_is_away_is_503(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api.store.database.committer, "connection", None)  # until its end, when it is closed
        for fields in (basic(), Proof(nonce="x" * 40, uri="/a/b?c=d").headers()):
            answer = judge(api, forwarded(), fields)
            check_refused(answer, 503)
            assert int(answer.header("Retry-After") or 0) > 0


class DigestTests:
    def proof(self, api: InMemoryApi, method: str, uri: str) -> Proof:
        (challenge,) = challenges_in(judge(api, forwarded(method, uri)))
        return Proof(nonce=challenge.nonce, method=method, uri=uri)

    @pytest.mark.parametrize("describe", [forwarded, original])
    @pytest.mark.parametrize("method", ["GET", "PUT", "PROPFIND"])
    def test_method_and_uri_are_those_described(
        self, api: InMemoryApi, describe: Callable[..., Fields], method: str
    ) -> None:
        proof = self.proof(api, method, "/dav/x?y=1")
        answer = judge(api, describe(method, "/dav/x?y=1"), proof.headers(), method="GET")
        check_admitted(answer, "alice", "digest")
        assert answer.header("Authentication-Info") == proof.info

    def test_response_for_another_method_is_401(self, api: InMemoryApi) -> None:
        proof = self.proof(api, "GET", "/x")
        check_challenged(judge(api, forwarded("PUT", "/x"), proof.headers()), "Digest", "Bearer", "Basic")

    @pytest.mark.parametrize("uri", ["/y", "/x?", "/x/", "/gate", "/%2578"])
    def test_response_for_another_uri_is_400(self, api: InMemoryApi, uri: str) -> None:
        proof = self.proof(api, "GET", "/x")
        check_refused(judge(api, forwarded("GET", uri), proof.headers()), 400)

    def test_octets_over_127_of_the_uri_are_judged_percent_encoded(self, api: InMemoryApi) -> None:
        described, uri = "/\xc3\xbc?a=\xff", "/%C3%BC?a=%FF"  # raw from programs; browsers encode
        for describe in (forwarded, original):
            proof = self.proof(api, "GET", uri)
            check_admitted(judge(api, describe("GET", described), proof.headers()), "alice", "digest")

    @pytest.mark.parametrize("uri", ["/%78", "//x", "/y/../x"])
    def test_response_for_another_spelling_of_the_uri_is_accepted(self, api: InMemoryApi, uri: str) -> None:
        proof = self.proof(api, "GET", "/x")
        check_admitted(judge(api, forwarded("GET", uri), proof.headers()), "alice", "digest")

    def test_absolute_uri_is_that_of_the_described_host(self, api: InMemoryApi) -> None:
        for host, status in (("app.example", 200), ("APP.example", 200), ("localhost", 400), ("posts.example", 400)):
            (challenge,) = challenges_in(judge(api, forwarded()))
            proof = Proof(nonce=challenge.nonce, uri=f"http://{host}/x")
            assert judge(api, forwarded(uri="/x"), proof.headers()).status == status

    def test_used_count_is_stale(self, api: InMemoryApi) -> None:
        proof = self.proof(api, "GET", "/x")
        check_admitted(judge(api, forwarded(uri="/x"), proof.headers()), "alice", "digest")
        answer = judge(api, forwarded(uri="/x"), proof.headers())
        check_refused(answer, 401)
        assert challenges_in(answer)[0].stale


class BearerTests:
    def test_token_lets_in(self, api: InMemoryApi) -> None:
        answer = judge(api, forwarded(), bearer(MINT.token(scope="b a")))
        check_admitted(answer, f"{ISSUER}#alice", "bearer", "a b")
        check_admitted(judge(api, forwarded(), bearer(MINT.token(scope=ABSENT))), f"{ISSUER}#alice", "bearer", "")

    @each(
        "method, scope",
        [*((method, "files:read") for method in ("GET", "HEAD", "OPTIONS", "TRACE")), ("PUT", "files:write")]
        + [(method, "files:write") for method in ("POST", "DELETE", "PATCH", "PROPFIND", "get")],
    )
    def test_scope_goes_by_the_described_method(self, api: InMemoryApi, method: str, scope: str) -> None:
        for own in ("GET", "POST"):
            token = bearer(MINT.token(sub="carol", scope=scope))
            check_admitted(
                judge(api, forwarded(method), token, page="/gate/bob", method=own), f"{ISSUER}#carol", "bearer", scope
            )
            answer = judge(
                api, forwarded(method), bearer(MINT.token(sub="carol", scope="x")), page="/gate/bob", method=own
            )
            check_refused(answer, 403)
            (line,) = answer.headers["www-authenticate"]
            assert f'error="insufficient_scope", scope="{scope}"' in line

    def test_metadata_is_that_of_the_described_origin(self, api: InMemoryApi) -> None:
        """Not of postd's own `public_url`."""
        lines = judge(api, forwarded()).headers["www-authenticate"]
        assert 'resource_metadata="https://app.example/.well-known/oauth-protected-resource"' in lines[1]
        lines = judge(api, forwarded(), {"X-Forwarded-Proto": "http"}).headers["www-authenticate"]
        assert 'resource_metadata="http://app.example/.well-known/oauth-protected-resource"' in lines[1]

    def test_tls_of_the_proxy_is_not_that_of_the_client(self, api: InMemoryApi) -> None:
        headers = {**forwarded(), "X-Forwarded-Proto": "http"}
        answer = ask(api, "GET", "/gate", None, headers, peer=PROXY, tls=True)
        assert 'resource_metadata="http://app.example/' in answer.headers["www-authenticate"][1]

    def test_dpop_proof_is_for_the_described_request(
        self, make: Callable[..., InMemoryApi], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
        monkeypatch.setattr(KeySource, "find", keys.find)
        api = make(f'hosts = ["app.example"]\n{SETTINGS}dpop = "accept"\n')
        prover = Prover(Key.make("ES256"), now=time.time)
        token = MINT.token(cnf=prover.confirmation, scope="a")

        def prove(method: str, url: str) -> dict[str, Any]:
            return {"Authorization": f"DPoP {token}", "DPoP": prover.prove(method, url, token)}

        for own in ("GET", "POST"):
            proof = prove("PUT", "https://app.example/a/b")
            check_admitted(judge(api, forwarded("PUT"), proof, method=own), f"{ISSUER}#alice", "dpop", "a")
        proof = prove("PUT", "https://app.example/%C3%BC")
        check_admitted(judge(api, forwarded("PUT", "/\xc3\xbc?\xff"), proof), f"{ISSUER}#alice", "dpop", "a")
        check_challenged(judge(api, forwarded("PUT"), proof), "Digest", "Bearer", "DPoP", "Basic")
        for method, url in (("GET", "https://app.example/a/b"), ("PUT", "https://posts.example/gate")):
            answer = judge(api, forwarded("PUT"), prove(method, url))
            check_challenged(answer, "Digest", "Bearer", "DPoP", "Basic")
            assert 'error="invalid_dpop_proof"' in answer.headers["www-authenticate"][2]

    def test_dpop_proof_needs_a_host(self, make: Callable[..., InMemoryApi], monkeypatch: pytest.MonkeyPatch) -> None:
        keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
        monkeypatch.setattr(KeySource, "find", keys.find)
        api = make(f'hosts = ["app.example"]\n{SETTINGS}dpop = "accept"\n')
        prover = Prover(Key.make("ES256"), now=lambda: InMemoryApi.START_S)
        token = MINT.token(cnf=prover.confirmation, scope="a")
        lines = {
            **forwarded(),
            "Authorization": f"DPoP {token}",
            "DPoP": prover.prove("GET", "https://app.example/a/b", token),
        }
        del lines["X-Forwarded-Host"]
        sent = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        answer = ask_raw(
            api.site, api.clock, f"GET /gate HTTP/1.0\r\n{sent}\r\n".encode(), IPv4Address("TCP", PROXY, 1)
        )
        check_challenged(answer, "Digest", "Bearer", "DPoP", "Basic")
        assert 'error="invalid_dpop_proof"' in answer.headers["www-authenticate"][2]
        assert "resource_metadata" not in str(answer.headers)

    def test_certificate_of_the_connection_is_not_the_client_s(self) -> None:
        """It is the proxy's; the client's is in `Client-Cert`."""
        fields = {b"X-Forwarded-Method": [b"GET"], b"X-Forwarded-Uri": [b"/"]}
        described = DescribedRequest(cast(Request, SimpleNamespace(fields=fields, client_certificate=b"x")))
        assert described.client_certificate is None

    def test_owner_of_a_token_is_not_an_account(self, api: InMemoryApi) -> None:
        check_refused(judge(api, forwarded(), bearer(MINT.token(sub="bob", scope="files:read")), page="/gate/bob"), 403)


class SessionTests:
    @pytest.fixture
    def session(self, api: InMemoryApi) -> dict[str, Any]:
        answer = send_form(api, {"username": "alice", "password": PASSWORD})
        assert answer.status == 302
        return {"Cookie": (answer.header("Set-Cookie") or "").partition(";")[0]}

    @pytest.mark.parametrize("page", ["/gate", "/gate/people"])
    def test_session_lets_in(self, api: InMemoryApi, session: Fields, page: str) -> None:
        for method in ("GET", "POST", "DELETE"):
            for describe in (forwarded, original):
                check_admitted(judge(api, describe(method), session, page=page), "alice", "session")

    @pytest.mark.parametrize(
        ("method", "fields", "status"),
        [
            ("POST", {"Origin": "https://app.example"}, 200),
            ("POST", {"Origin": "https://posts.example"}, 403),
            ("POST", {"Origin": "https://localhost"}, 403),
            ("POST", {"Origin": "https://evil.example"}, 403),
            ("POST", {"Origin": "null"}, 403),
            ("POST", {"Sec-Fetch-Site": "cross-site"}, 403),
            ("POST", {"Sec-Fetch-Site": "same-site"}, 403),
            ("POST", {"Sec-Fetch-Site": "same-origin"}, 200),
            ("PROPFIND", {"Origin": "https://evil.example"}, 403),
            ("GET", {"Origin": "https://evil.example"}, 200),
            ("HEAD", {"Sec-Fetch-Site": "cross-site"}, 200),
        ],
    )
    def test_cross_site_write_is_judged_by_the_described_host_and_method(
        self, api: InMemoryApi, session: Fields, method: str, fields: Fields, status: int
    ) -> None:
        for own in ("GET", "POST"):
            assert judge(api, forwarded(method), session, fields, page="/gate/people", method=own).status == status
            assert judge(api, forwarded(method), basic(), fields, method=own).status == status
            assert judge(api, forwarded(method), bearer(MINT.token()), fields, method=own).status == 200

    @pytest.mark.parametrize("describe", [forwarded, original])
    @pytest.mark.parametrize(
        ("method", "handshake"),
        [
            ("GET", {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}),
            ("GET", {"Sec-WebSocket-Version": "13"}),  # Traefik and nginx do not pass Upgrade on by themselves
            ("CONNECT", {"Sec-WebSocket-Version": "13"}),  # the extended CONNECT of HTTP/2
            ("CONNECT", {}),
        ],
    )
    def test_websocket_handshake_is_judged_by_the_described_origin(
        self, api: InMemoryApi, session: Fields, describe: Callable[..., Fields], method: str, handshake: Fields
    ) -> None:
        for fields, status in (
            ({"Origin": "https://app.example"}, 200),
            ({}, 200),
            ({"Origin": "https://blog.example", "Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": "https://app.example:8443"}, 403),
            ({"Origin": "https://posts.example"}, 403),
            ({"Origin": "null"}, 403),
        ):
            assert judge(api, describe(method), session, handshake, fields, page="/gate/people").status == status
            assert judge(api, describe(method), basic(), handshake, fields).status == status
            assert judge(api, describe(method), bearer(MINT.token()), handshake, fields).status == 200

    def test_named_origin_may_write_with_a_password(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(SETTINGS.replace(ISSUERS, "") + '[api]\ncors_origins = ["https://editor.example"]\n')
        for origin, status in (("https://editor.example", 200), ("https://evil.example", 403)):
            assert judge(api, forwarded("POST"), basic(), {"Origin": origin}).status == status

    @pytest.mark.parametrize(
        ("uri", "location"),
        [
            ("/", "/?next=/"),
            ("/a/b", "/?next=/a/b"),
            ("/a/b?c=d&e=%20f", "/?next=/a/b%3Fc%3Dd%26e%3D%2520f"),
            ("/a+b#c", "/?next=/a%2Bb%23c"),
            ('/<">\\', "/?next=/%3C%22%3E%5C"),
            ("//evil.example", "/?next=//evil.example"),
            ("/\xc3\xbc%20?a=\xff", "/?next=/%25C3%25BC%2520%3Fa%3D%25FF"),
            ("/" + "x" * 5000, "/"),
        ],
    )
    def test_browser_is_led_to_the_form(self, api: InMemoryApi, uri: str, location: str) -> None:
        for method in ("GET", "HEAD"):
            answer = judge(api, forwarded(method, uri), {"Accept": BROWSER}, page="/gate/people")
            check_refused(answer, 302)
            assert answer.header("Location") == location
            assert answer.headers.get("www-authenticate") is None

    def test_form_leads_back_to_what_the_browser_asked_for(self, api: InMemoryApi) -> None:
        uri = "/a/b?c=d&e=%20f&g=%C3%BC"
        location = judge(api, forwarded(uri=uri), {"Accept": BROWSER}, page="/gate/people").header("Location") or ""
        (found,) = parse_qs(urlsplit(location).query)["next"]
        assert found == uri
        form = ask(api, "GET", location).body.decode()
        (value,) = re.findall('name="next" value="([^"]*)"', form)
        answer = send_form(api, {"username": "alice", "password": PASSWORD, "next": value.replace("&amp;", "&")})
        assert answer.header("Location") == uri

    @each(
        "describe, method, accept",
        [
            (original, "GET", BROWSER),
            (forwarded, "POST", BROWSER),
            (forwarded, "OPTIONS", BROWSER),
            (forwarded, "get", BROWSER),
            (forwarded, "GET", "*/*"),
            (forwarded, "GET", "text/plain, text/html"),
            (forwarded, "GET", "application/json"),
            (forwarded, "GET", ""),
            (forwarded, "GET", None),
        ],
    )
    def test_others_are_401(
        self, api: InMemoryApi, describe: Callable[..., Fields], method: str, accept: str | None
    ) -> None:
        answer = judge(api, describe(method), {} if accept is None else {"Accept": accept}, page="/gate/people")
        check_challenged(answer, "Cookie")
        assert answer.header("WWW-Authenticate") == CHALLENGE
        assert answer.header("Location") is None

    def test_page_with_other_schemes_redirects_browsers_and_challenges_programs(self, api: InMemoryApi) -> None:
        for headers in ({"Accept": BROWSER}, {"Sec-Fetch-Mode": "navigate"}):
            check_refused(judge(api, forwarded(), headers), 302)
            check_challenged(judge(api, original(), headers), "Digest", "Bearer", "Basic")
        for headers in ({"Accept": "text/html, */*;q=0.2"}, {"Accept": BROWSER, "Sec-Fetch-Mode": "cors"}):
            check_challenged(judge(api, forwarded(), headers), "Digest", "Bearer", "Basic")
            check_challenged(judge(api, forwarded(), headers, page="/gate/people"), "Cookie")

    @pytest.mark.parametrize("describe", [forwarded, original])
    def test_client_that_prefers_html_gets_the_401_as_a_page(
        self, api: InMemoryApi, describe: Callable[..., Fields]
    ) -> None:
        answers = [judge(api, describe(), {"Accept": accept}) for accept in ("*/*", "text/html, */*;q=0.2")]
        for answer, kind in zip(answers, ("text/plain", "text/html"), strict=True):
            check_challenged(answer, "Digest", "Bearer", "Basic")
            assert answer.header("Content-Type") == f"{kind}; charset=utf-8"
            assert answer.header("Content-Length") == str(len(answer.body))
            assert answer.header("Vary") == "Accept"
        assert answers[0].body == b"Unauthorized\n"
        assert b"app.example" not in answers[1].body

    def test_cookie_of_no_use_is_taken_away(self, api: InMemoryApi) -> None:
        cookie = {"Cookie": "session=" + "A" * 43, "Accept": BROWSER}
        answer = judge(api, forwarded(), cookie, page="/gate/people")
        check_refused(answer, 302)
        assert answer.header("Set-Cookie") == EXPIRED

    def test_password_is_none_where_only_sessions_are(self, api: InMemoryApi) -> None:
        check_challenged(judge(api, forwarded(), basic(), page="/gate/people"), "Cookie")

    def test_signed_out_session_is_refused(self, api: InMemoryApi, session: Fields) -> None:
        assert ask(api, "POST", "/logout", None, session).status == 302
        check_challenged(judge(api, forwarded(), session, page="/gate/people"), "Cookie")


class IdentityFieldTests:
    @each(
        "name, encoded",
        [
            *(("alice", "alice"), ("a b", "a b"), (" a", "%20a"), ("a ", "a%20"), ("  a  ", "%20 a %20"), (" ", "%20")),
            *(("100%", "100%25"), ("%20", "%2520"), ("grün", "gr%C3%BCn"), ("世", "%E4%B8%96"), ("🚀", "%F0%9F%9A%80")),
            *(
                ("a\tb\r\nc", "a%09b%0D%0Ac"),
                ("\x7f", "%7F"),
                ('"{$}\\;,<>', '"{$}\\;,<>'),
                (f"{ISSUER}#x", f"{ISSUER}#x"),
            ),
        ],
    )
    def test_name(self, name: str, encoded: str) -> None:
        assert encode_name(name) == encoded.encode()

    @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    def test_any_name_can_be_decoded(self, name: str) -> None:
        encoded = encode_name(name).decode()
        assert re.fullmatch("[!-~](?:[ -~]*[!-~])?", encoded)
        assert unquote(encoded, errors="strict") == name

    @each(
        "scopes, encoded",
        [
            *(
                (("b", "a", "c"), "a b c"),
                ((), ""),
                (("a b", "c%"), "a%20b c%25"),
                (("ü", "z"), "z %C3%BC"),
                (("",), ""),
            ),
            *((("a:b/c.d", "\t"), "%09 a:b/c.d"), (("\ud800",), "%ED%A0%80")),
        ],
    )
    def test_scopes(self, scopes: tuple[str, ...], encoded: str) -> None:
        assert encode_scopes(frozenset(scopes)) == encoded.encode()

    def test_name_of_an_account_is_encoded(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(SETTINGS.replace(ISSUERS, ""), users=account("jürgen 100%"))
        for encoding in ("utf-8", "latin-1"):
            sent = basic("jürgen 100%", encoding=encoding)
            check_admitted(judge(api, forwarded(), sent), "j%C3%BCrgen 100%25", "basic")


class LogTests:
    def lines(self, api: InMemoryApi, *fields: Fields, page: str = "/gate", peer: str = PROXY) -> list[str]:
        with recorded_log(api) as events:
            judge(api, *fields, page=page, peer=peer)
        check_secret(events, "secret-path", PASSWORD)
        return [line for event in events for line in event.get("lines", "").splitlines()]

    def test_line_shows_the_request_and_what_was_judged(self, api: InMemoryApi) -> None:
        (line,) = self.lines(api, forwarded("DELETE", "/secret-path?a=b"), basic())
        assert '"GET /gate HTTP/1.1" 200 - ' in line
        assert " - alice [" in line
        assert "route=/gate scheme=basic" in line
        assert line.endswith('judged="DELETE /~11?~3"')

    def test_line_of_an_odd_method_is_redacted(self, api: InMemoryApi) -> None:
        (line,) = self.lines(api, forwarded("SECRET", "/"))
        assert line.endswith('judged="~6 /"')

    @pytest.mark.parametrize("page", ["/gate", "/post", "/basic"])
    def test_other_lines_show_nothing_more(self, api: InMemoryApi, page: str) -> None:
        (line,) = self.lines(api, forwarded(), page=page, peer=CLIENT)
        assert "judged" not in line


def test_page_without_forward_takes_no_description(make: Callable[..., InMemoryApi]) -> None:
    api = make(f'trusted_proxies = ["{PROXY}"]')
    answer = judge(api, forwarded(), basic(), page="/basic")
    assert (answer.status, answer.body, answer.header("Remote-User")) == (200, b"Success: alice\n", None)


def test_only_the_proxies_of_the_settings_are_trusted(make: Callable[..., InMemoryApi]) -> None:
    api = make(SETTINGS.replace(PROXY, CLIENT))
    check_refused(judge(api, forwarded(), basic()), 403)
    check_admitted(judge(api, forwarded(), basic(), peer=CLIENT), "alice", "basic")
