"""The protected resource metadata of RFC 9728, and its URL in challenges."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protect.bearer import METADATA_PATH
from tests.cases import each
from tests.helpers import InMemoryApi, Response
from tests.protect.test_bearer import ISSUER, ISSUERS, MINT, RULES, bearer, of_origin, remove_variable_fields
from tests.web.clients import ask_raw, basic
from tests.web.test_posts import check_problem
from tests.web.wire import ask

GOOD_HOSTS = {
    "posts.example": "posts.example",
    "POSTS.Example": "posts.example",
    "posts.example:8080": "posts.example:8080",
    "localhost:1": "localhost:1",
    "192.0.2.1:8080": "192.0.2.1:8080",
    "[2001:db8::1]": "[2001:db8::1]",
    "[2001:DB8::1]:65535": "[2001:db8::1]:65535",
    "xn--bcher-kva.example.": "xn--bcher-kva.example.",
    "a_b.example": "a_b.example",
}
ODD_HOSTS = [
    *(b"", b'a"b', b'a", evil="', b"a b", b"a\tb", b"a\\b", b"a/b", b"a/../b", b"a?b", b"a#b", b"a@b", b"user:pass@a"),
    *(b"<script>", b"a,b", b"a;b", b"a'b", b"a%0d%0ab", b"a%22b", b"http://a", b"//a", b"a:", b"a:b", b"a:1:2", b":80"),
    *(
        b"a:999999",
        b"a:-1",
        b"[::1",
        b"::1",
        b"[x]",
        b"[::1]x",
        b"[]",
        b"[::1%25lo]",
        b"b\xfccher",
        "b\u00fccher".encode(),
    ),
    *(b"\xff\xfe", b"*", b"a=b", b"a|b", b"$(id)", b"{{7*7}}", b"\x80"),
]


@pytest.fixture
def api(make: Callable[[str], InMemoryApi]) -> InMemoryApi:
    return make(RULES + ISSUERS)


def read(answer: Response, cached: str = "no-store") -> dict[str, Any]:
    """Check that a response is the document, with this `Cache-Control`; return its content."""
    assert answer.status == 200
    assert answer.header("Content-Type") == "application/json"
    assert answer.header("Cache-Control") == cached
    assert answer.header("X-Content-Type-Options") == "nosniff"
    document: dict[str, Any] = json.loads(answer.body)
    return document


def metadata_url(answer: Response) -> str:
    """Return the URL of the document in a challenge, without the resource's path."""
    (line,) = map(of_origin, answer.headers["www-authenticate"])
    before, url, after = line.split('"')[-3:]
    assert before.endswith("resource_metadata=")
    assert after == ""
    return url


class DocumentTests:
    """Reference: Bearer, B31."""

    def test_document_has_the_defaults(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", METADATA_PATH, headers={"Host": "posts.example"})
        assert read(answer) == {
            "resource": "http://posts.example",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
        }
        assert answer.body.startswith(b'{\n  "resource": ')
        assert answer.body.endswith(b"}\n")

    def test_document_follows_the_settings(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(
            """
            [[bearer]]
            issuer = "https://z.example/"
            audience = "x"
            read_scope = "posts:read"
            write_scope = "posts:write posts:read"
            [[bearer]]
            issuer = "https://a.example/realms/main"
            audience = ""
            required_claims = {azp = "s3cr3t"}
            read_scope = "all"
            client_id = "s3cr3t"
            """
        )
        answer = ask(api, "GET", METADATA_PATH)
        assert read(answer) == {
            "resource": "http://localhost",
            "authorization_servers": ["https://z.example/", "https://a.example/realms/main"],
            "scopes_supported": ["all", "posts:read", "posts:write"],
            "bearer_methods_supported": ["header"],
        }
        assert b"s3cr3t" not in answer.body

    def test_document_needs_no_credentials(self, api: InMemoryApi) -> None:
        expected = ask(api, "GET", METADATA_PATH).body
        origin = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
        for headers in ({}, basic("unknown"), bearer("x"), bearer(MINT.token()), {"Authorization": ["a", "b"]}, origin):
            assert ask(api, "GET", METADATA_PATH, headers=headers).body == expected
        assert ask(api, "GET", METADATA_PATH + "?x=1").body == expected

    def test_head_has_the_headers_of_get(self, api: InMemoryApi) -> None:
        got, head = (ask(api, method, METADATA_PATH) for method in ("GET", "HEAD"))
        for answer in (got, head):
            remove_variable_fields(answer)
        assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    @each("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "FOO", "get"])
    def test_other_method_is_405(self, api: InMemoryApi, method: str) -> None:
        answer = ask(api, method, METADATA_PATH)
        check_problem(answer, 405)
        assert sorted((answer.header("Allow") or "").split(", ")) == ["GET", "HEAD", "OPTIONS"]

    def test_options_is_204_with_allow(self, api: InMemoryApi) -> None:
        answer = ask(api, "OPTIONS", METADATA_PATH)
        assert (answer.status, answer.body) == (204, b"")
        assert sorted((answer.header("Allow") or "").split(", ")) == ["GET", "HEAD", "OPTIONS"]

    @each(
        "path",
        [
            *("/.well-known", "/.well-known/", f"{METADATA_PATH}/", f"{METADATA_PATH}/basic", f"/{METADATA_PATH}"),
            *("/.well-known/openid-configuration", "/.well-known/x", "/.WELL-KNOWN/oauth-protected-resource"),
            *(
                "/.well-known//oauth-protected-resource",
                "/.well-known%2Foauth-protected-resource",
                f"{METADATA_PATH}.json",
            ),
        ],
    )
    def test_other_path_is_404(self, api: InMemoryApi, path: str) -> None:
        assert ask(api, "GET", path).status == 404

    def test_document_without_issuers_is_404(self, make: Callable[[str], InMemoryApi]) -> None:
        check_problem(ask(make(RULES), "GET", METADATA_PATH), 404)


class OriginTests:
    """The origin in the document: from `public_url`, or from the request."""

    def origin(self, api: InMemoryApi, **headers: Any) -> str:
        """Return the origin of the server according to the document and a challenge."""
        resource: str = read(ask(api, "GET", METADATA_PATH, headers=headers))["resource"]
        # RFC 9728 §3.3: it is the document of the resource that was asked for.
        assert metadata_url(ask(api, "GET", "/bearer", headers=headers)) == resource + METADATA_PATH
        return resource

    @each("host", GOOD_HOSTS)
    def test_resource_has_the_requested_host(self, api: InMemoryApi, host: str) -> None:
        assert self.origin(api, Host=host) == f"http://{GOOD_HOSTS[host]}"

    @each("host", ODD_HOSTS)
    def test_invalid_host_is_not_repeated(self, api: InMemoryApi, host: bytes) -> None:
        for path, status in ((METADATA_PATH, 400), ("/bearer", 401)):
            answer = ask(api, "GET", path, headers={"Host": host})
            assert answer.status in {status, 400}
            assert "resource_metadata" not in str(answer.headers)
            assert len(host) < 3 or host.decode("latin-1") not in str(answer.headers) + answer.body.decode()

    def test_host_cannot_inject_a_field(self, api: InMemoryApi) -> None:
        for host in (
            b"a\r\nX-Evil: b",
            b"a\r\n b",
            b"a\r\n\tX-Evil: b",
            b"a\nX-Evil: b",
            b"a\rX-Evil: b",
            b"a\0b",
        ):
            for path in (METADATA_PATH, "/bearer"):
                answer = ask_raw(api.site, api.clock, b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (path.encode(), host))
                assert "x-evil" not in answer.headers
                assert "evil" not in str(answer.headers).lower() + answer.body.decode().lower()

    @given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30))
    def test_challenge_is_well_formed_for_any_host(self, api: InMemoryApi, host: str) -> None:
        answer = ask(api, "GET", "/bearer", headers={"Host": host.encode("latin-1")})
        if answer.status != 400:
            (line,) = answer.headers["www-authenticate"]
            assert line.isascii()
            assert line.count('"') == (4 if "resource_metadata" in line else 2)
            if "resource_metadata" in line:
                assert metadata_url(answer).startswith("http://")
                assert " " not in metadata_url(answer)

    def test_request_without_host_is_not_given_the_address_of_the_listener(self, api: InMemoryApi) -> None:
        """HTTP/1.0 needs no `Host`. The document has to name the resource: without a host there is none."""
        check_problem(ask_raw(api.site, api.clock, f"GET {METADATA_PATH} HTTP/1.0\r\n\r\n".encode()), 400)
        answer = ask_raw(api.site, api.clock, b"GET /bearer HTTP/1.0\r\n\r\n")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, ['Bearer realm="postd"'])

    def test_resource_has_https_over_tls(self, api: InMemoryApi) -> None:
        assert read(ask(api, "GET", METADATA_PATH, tls=True))["resource"] == "https://localhost"
        assert metadata_url(ask(api, "GET", "/bearer", tls=True)) == "https://localhost" + METADATA_PATH

    @pytest.mark.parametrize("peer", ["192.0.2.7", "2001:db8::7", "unix"])
    def test_forwarded_proto_of_a_trusted_proxy_is_used(self, make: Callable[[str], InMemoryApi], peer: str) -> None:
        api = make(f"trusted_proxies = ['192.0.2.7', '2001:db8::/32', 'unix']\n{RULES}{ISSUERS}")
        for sent, scheme in (("https", "https"), ("HTTPS", "https"), ("http", "http"), ("x", "http"), ("", "http")):
            headers = {"X-Forwarded-Proto": sent, "Host": "posts.example"}
            answer = ask(api, "GET", METADATA_PATH, headers=headers, peer=peer)
            assert read(answer)["resource"] == f"{scheme}://posts.example"
            challenged = ask(api, "GET", "/bearer", headers=headers, peer=peer)
            assert metadata_url(challenged) == f"{scheme}://posts.example{METADATA_PATH}"

    def test_forwarded_proto_of_others_is_ignored(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(f"trusted_proxies = ['192.0.2.7']\n{RULES}{ISSUERS}")
        for peer in ("192.0.2.8", "127.0.0.1", "::1", "unix"):
            answer = ask(api, "GET", METADATA_PATH, headers={"X-Forwarded-Proto": "https"}, peer=peer)
            assert read(answer)["resource"] == "http://localhost"

    def test_forwarded_host_is_ignored(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(f"trusted_proxies = ['127.0.0.1']\n{RULES}{ISSUERS}")
        other = {
            "X-Forwarded-Host": "evil.example",
            "Forwarded": "host=evil.example",
            "X-Original-Host": "evil.example",
        }
        assert self.origin(api, **other) == "http://localhost"

    @pytest.mark.parametrize("url", ["https://posts.example", "http://127.0.0.1:8080", "https://posts.example:8443"])
    def test_public_url_overrides_the_request(self, make: Callable[[str], InMemoryApi], url: str) -> None:
        api = make(f"public_url = '{url}'\ntrusted_proxies = ['127.0.0.1']\n{RULES}{ISSUERS}")
        for headers in ({}, {"Host": "evil.example"}, {"X-Forwarded-Proto": "http"}):
            answer = ask(api, "GET", METADATA_PATH, headers=headers)
            assert read(answer, "max-age=3600")["resource"] == url
        answer = ask_raw(api.site, api.clock, f"GET {METADATA_PATH} HTTP/1.0\r\n\r\n".encode())
        assert read(answer, "max-age=3600")["resource"] == url
