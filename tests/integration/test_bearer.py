"""Bearer tokens from outside, on the real process: forged ones and good ones, rules, scopes, owners, introspection."""

import base64
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote, urlencode

import httpx
import pytest
from msgspec import Struct

from tests.cases import each
from tests.forgeries import SCOPE, SECRETS, Forgery, make_forgeries, make_good_tokens, make_keys
from tests.helpers import Response
from tests.integration.daemon import Daemon, refuse_here
from tests.integration.test_logins import PASSWORD, serve, write_users
from tests.integration.wire import JSON, Wire, bearer
from tests.issuer import ABSENT, INTROSPECTION, JWKS, Issuer, Key, Reply

AUDIENCE = "https://posts.example"
METADATA = "/.well-known/oauth-protected-resource"
HIDDEN = "hidden-51c0ae"
"""In a claim of valid tokens; must not be in a log."""

BODY = b'{"post": "x"}'


def bearer_table(issuer: Issuer, **settings: Any) -> str:
    """Return a `[[bearer]]` of a settings file."""
    whole = {"issuer": issuer.issuer, "audience": issuer.audience, **settings}
    return "\n[[bearer]]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in whole.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def check_log(log: str, *secrets: str) -> None:
    """Check that a log has no secret and no unexpected error."""
    assert [secret for secret in secrets if secret in log] == []
    assert "Traceback" not in log
    assert "Unhandled" not in log
    assert "Warning" not in log
    assert '" 500 ' not in log
    assert "\x1b" not in log


def secret_parts(tokens: list[bytes]) -> list[str]:
    """Return the parts of tokens that must not be in a log."""
    parts = {part.decode("latin-1") for token in tokens for part in token.split(b".")}
    return [part for part in parts if len(part) > 16]


# One server, four issuers

STRICT, PLAIN, COGNITO, ENTRA = "strict", "plain", "cognito", "entra"


class Served(Struct):
    """A server, a client of it, and its issuers."""

    daemon: Daemon
    wire: Wire
    main: Issuer
    others: Mapping[str, Issuer]


def rules_of(main: Issuer, other: Issuer) -> str:
    return f"""
users = "users"
trusted_proxies = ["127.0.0.1"]
api = {{read = ["bearer"], write = ["bearer"]}}
page = [
    {{path = "/all", schemes = ["basic", "bearer", "digest"]}},
    {{path = "/token", schemes = ["bearer"]}},
    {{path = "/either", schemes = ["basic", "bearer"]}},
    {{path = "/alice", schemes = ["bearer", "basic"], users = ["{main.issuer}#alice"]}},
    {{path = "/two", schemes = ["bearer"], users = ["{main.issuer}#bob", "{other.issuer}#alice"]}},
    {{path = "/bare", schemes = ["bearer", "basic"], users = ["alice"]}},
    {{path = "/scoped", schemes = ["bearer", "basic"], read_scope = "page:see", write_scope = "page:change"}},
]
"""


@contextmanager
def five_issuers() -> Iterator[tuple[Issuer, dict[str, Issuer]]]:
    with (
        Issuer(AUDIENCE, *make_keys(), path="/realms/main") as main,
        Issuer(AUDIENCE, Key.make("ES256")) as strict,
        Issuer(AUDIENCE, Key.make("ES256")) as plain,
        Issuer("", Key.make("ES256")) as cognito,
        Issuer("api://posts", Key.make("ES256")) as entra,
    ):
        yield main, {STRICT: strict, PLAIN: plain, COGNITO: cognito, ENTRA: entra}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bearer")
    write_users(folder, alice=PASSWORD)
    with five_issuers() as (main, others):
        tables = [
            bearer_table(main, read_scope="posts:read", write_scope="posts:write"),
            bearer_table(others[STRICT], token_types=["at+jwt"]),
            bearer_table(others[PLAIN], audience=["elsewhere", AUDIENCE], user_claim="email", leeway="1s"),
            bearer_table(
                others[COGNITO],
                required_claims={"token_use": "access", "client_id": ["app", "other-app"], "level": 1},
                user_claim="username",
            ),
            bearer_table(others[ENTRA], scope_claims=["roles"], read_scope="Posts.Read", write_scope="Posts.Write"),
        ]
        with serve(folder, rules_of(main, others[STRICT]) + "".join(tables)) as daemon, Wire(daemon) as wire:
            yield Served(daemon, wire, main, others)
        # What all of these tests have sent. The log is whole when the process has ended.
        check_log(daemon.log, *SECRETS, HIDDEN, PASSWORD, *secret_parts(wire.sent))


@pytest.fixture(scope="module")
def wire(served: Served) -> Wire:
    return served.wire


@pytest.fixture(scope="module")
def main(served: Served) -> Issuer:
    return served.main


def token_of(issuer: Issuer, **claims: Any) -> str:
    """Return a token of the main issuer for reading and writing."""
    return issuer.token(**{"scope": SCOPE, "hidden": HIDDEN, **claims})


def challenge(wire: Wire, path: str = "/post", **parameters: str) -> str:
    """Return the expected challenge of what is protected at a path."""
    expected = {"realm": "postd", **parameters, "resource_metadata": f"{wire.origin}{METADATA}{path}"}
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in expected.items())


def invalid(wire: Wire, path: str = "/post", *, expired: bool = False) -> str:
    description = "The access token expired" if expired else "The access token is invalid"
    return challenge(wire, path, error="invalid_token", error_description=description)


def insufficient(wire: Wire, scope: str, path: str = "/post") -> str:
    return challenge(wire, path, error="insufficient_scope", scope=scope)


def check_problem(answer: Response, status: int, challenges: list[str] | None) -> None:
    """Check an error of the API with its challenges exactly."""
    assert answer.status == status
    assert answer.headers.get("www-authenticate") == challenges
    assert answer.header("content-type") == "application/problem+json"
    assert answer.header("cache-control") == "no-store"
    if answer.body:
        assert json.loads(answer.body)["status"] == status


# Forgeries


def check_answer_to(forgery: Forgery, answer: Response, wire: Wire) -> None:
    refused = [invalid(wire, expired=forgery.expired)] if forgery.status == 401 else None
    check_problem(answer, forgery.status, refused)
    longest = max(forgery.token.split(b"."), key=len)
    assert len(longest) < 8 or longest not in answer.body


def test_forged_tokens_are_refused(main: Issuer, wire: Wire) -> None:
    """For reading and for writing, all with the same response; the server requests no URL that a token names."""
    forgeries = make_forgeries(main)
    assert len(forgeries) > 300
    wrong: dict[str, str] = {}
    for name, forgery in forgeries.items():
        for answer in (wire.get("/post", forgery.token), wire.post(forgery.token)):
            try:
                check_answer_to(forgery, answer, wire)
            except AssertionError as error:
                wrong[name] = str(error).partition("\n")[0]
    assert wrong == {}
    assert wire.get("/post", token_of(main)).body == b"[]\n"
    assert {asked.path for asked in main.asked} <= {main.discovery_path, main.rfc_8414_path, JWKS}
    assert main.count(JWKS) <= 3


def test_refused_token_keeps_the_connection_open(main: Issuer, wire: Wire) -> None:
    assert wire.get("/post", token_of(main)).status == 200
    connections = wire.connections
    for _ in range(20):
        assert wire.post("x.y.z").status == 401
        assert wire.post("x" * 9000).status == 431
    assert wire.post(token_of(main, scope="")).status == 403
    assert wire.connections == connections


def test_folded_token_is_refused(main: Issuer, wire: Wire) -> None:
    token = token_of(main)
    for separator in ("\r\n ", "\r\n\t", "\r\n", "\n", "\0"):
        before = wire.connections
        answer = wire.ask("POST", "/post", bearer(f"{token[:300]}{separator}{token[300:]}"), body=BODY, headers=(JSON,))
        assert answer.status in {400, 401}
        assert wire.connections - before <= 1
    assert wire.get("/post", token).body == b"[]\n"


def test_unusual_valid_tokens_are_accepted(main: Issuer, wire: Wire) -> None:
    wrong: dict[str, Any] = {}
    for name, token in make_good_tokens(main).items():
        read, written = wire.get("/post", token), wire.post(token)
        if (read.status, written.status) != (200, 201):
            wrong[name] = read.status, read.headers.get("www-authenticate"), written.status
        else:
            location = written.headers["location"][0]
            assert wire.ask("DELETE", location, bearer(token)).status == 200
    assert wrong == {}
    assert wire.get("/post", token_of(main)).body == b"[]\n"


# Rules


@each("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "BREW"])
def test_request_without_credentials_is_challenged(wire: Wire, method: str) -> None:
    """The challenge has only the URL of the metadata (RFC 6750 §3.1, RFC 9728 §5.1)."""
    check_problem(wire.ask(method, "/post"), 401, [challenge(wire)])
    page = wire.ask(method, "/token")
    assert (page.status, page.headers["www-authenticate"]) == (401, [challenge(wire, "/token")])
    assert page.header("content-type") == "text/plain; charset=utf-8"
    assert page.body == (b"" if method == "HEAD" else b"Unauthorized\n")


@each("authorization", ["Foo x", "", basic("alice", PASSWORD), "Digest x", "BearerX x"])
def test_unknown_scheme_is_treated_as_no_credentials(wire: Wire, authorization: str) -> None:
    check_problem(wire.ask("GET", "/post", authorization), 401, [challenge(wire)])


def test_challenges_are_digest_bearer_basic(main: Issuer, wire: Wire) -> None:
    """In any order of the rule; the error of a token is in the line of Bearer."""
    for credentials, line in (
        ((), challenge(wire, "/all")),
        ((bearer("x"),), invalid(wire, "/all")),
        ((bearer(token_of(main, exp=1)),), invalid(wire, "/all", expired=True)),
        ((basic("alice", "wrong"),), challenge(wire, "/all")),
    ):
        answer = wire.ask("GET", "/all", *credentials)
        assert answer.status == 401
        digest, middle, last = answer.headers["www-authenticate"]
        assert digest.startswith('Digest realm="postd", qop="auth", algorithm=MD5, nonce="')
        assert "stale" not in digest
        assert (middle, last) == (line, 'Basic realm="postd"')


def test_each_scheme_of_a_rule_is_accepted(main: Issuer, wire: Wire, served: Served) -> None:
    """The page shows the bare name in each scheme."""
    assert wire.get("/all", token_of(main)).body == b"Success: alice\n"
    assert wire.ask("GET", "/all", basic("alice", PASSWORD)).body == b"Success: alice\n"
    digest = httpx.DigestAuth("alice", PASSWORD)
    assert httpx.get(f"{served.daemon.url}/all", auth=digest).text == "Success: alice\n"


@pytest.mark.parametrize("written", ["bearer {}", "BEARER {}", "Bearer   {}", "Bearer\t{}", "Bearer {} "])
def test_spellings_of_the_scheme_name_are_accepted(main: Issuer, wire: Wire, written: str) -> None:
    assert wire.ask("GET", "/token", written.format(token_of(main))).body == b"Success: alice\n"


def test_two_authorization_fields_are_400(main: Issuer, wire: Wire) -> None:
    good = bearer(token_of(main))
    for pair in ((good, good), (good, bearer("x")), (basic("alice", PASSWORD), good), (good, "")):
        check_problem(wire.ask("GET", "/post", *pair), 400, None)
        check_problem(wire.ask("POST", "/post", *pair, body=BODY, headers=(JSON,)), 400, None)
        page = wire.ask("GET", "/all", *pair)
        assert (page.status, page.body) == (400, b"Bad Request\n")
        assert "www-authenticate" not in page.headers
    assert wire.get("/post", token_of(main)).body == b"[]\n"


def test_token_outside_the_authorization_field_is_ignored(main: Issuer, wire: Wire) -> None:
    """Not in the query, a form, a cookie, or meant for a proxy (RFC 9700 §4.3.2); the log has none of them, either."""
    token = token_of(main)
    wire.sent.append(token.encode())
    form = urlencode({"access_token": token}).encode()
    fields = (("Content-Type", "application/x-www-form-urlencoded"),)
    check_problem(wire.ask("GET", f"/post?access_token={token}"), 401, [challenge(wire)])
    check_problem(wire.ask("POST", f"/post?access_token={token}", body=BODY, headers=(JSON,)), 401, [challenge(wire)])
    check_problem(wire.ask("POST", "/post", body=form, headers=fields), 401, [challenge(wire)])
    for name, value in (
        ("Proxy-Authorization", f"Bearer {token}"),
        ("Cookie", f"access_token={token}; session={token}"),
        ("X-Access-Token", token),
    ):
        check_problem(wire.ask("GET", "/post", headers=((name, value),)), 401, [challenge(wire)])


def test_token_in_the_query_leaves_the_field_in_force(main: Issuer, wire: Wire) -> None:
    assert wire.ask("GET", "/post?access_token=x", bearer(token_of(main))).status == 200


def test_options_needs_no_token(wire: Wire) -> None:
    assert wire.ask("OPTIONS", "/post").status == 204
    assert wire.ask("OPTIONS", "/post", bearer("x")).status == 204


def test_token_reads_and_writes(main: Issuer, wire: Wire) -> None:
    token = bearer(token_of(main))
    location = wire.post(token_of(main)).headers["location"][0]
    assert wire.ask("PUT", location, token, body=b'{"post": "y"}', headers=(JSON,)).body == b"Update a Post!\n"
    read = wire.ask("GET", location, token)
    assert (json.loads(read.body)["post"], read.header("cache-control")) == ("y", "private, no-store")
    assert wire.ask("HEAD", location, token).status == 200
    assert wire.ask("DELETE", location, token).body == b"Delete a Post!\n"
    assert wire.ask("GET", location, token).status == 404
    assert wire.ask("POST", "/post", token, body=b"{", headers=(JSON,)).status == 400


# Scopes


def test_read_scope_and_write_scope_are_separate(main: Issuer, wire: Wire) -> None:
    reader, writer = token_of(main, scope="posts:read"), token_of(main, scope="posts:write")
    assert wire.get("/post", reader).status == 200
    assert wire.get("/token", reader).status == 200
    check_problem(wire.post(reader), 403, [insufficient(wire, "posts:write")])
    check_problem(wire.get("/post", writer), 403, [insufficient(wire, "posts:read")])
    check_problem(wire.ask("HEAD", "/post", bearer(writer)), 403, [insufficient(wire, "posts:read")])
    for method in ("PUT", "DELETE", "PATCH"):
        check_problem(wire.ask(method, "/post/1", bearer(reader)), 403, [insufficient(wire, "posts:write")])
    written = wire.post(writer)
    assert written.status == 201
    assert wire.ask("DELETE", written.headers["location"][0], bearer(writer)).status == 200


@pytest.mark.parametrize(
    "scope", ["", "posts", "posts:reader", "Posts:Read", "posts:write,posts:read", [], ["posts:read "], ABSENT]
)
def test_scope_matches_whole_words(main: Issuer, wire: Wire, scope: Any) -> None:
    token = token_of(main, scope=scope)
    check_problem(wire.get("/post", token), 403, [insufficient(wire, "posts:read")])
    page = wire.get("/all", token)
    assert (page.status, page.body) == (403, b"Forbidden\n")
    assert page.headers["www-authenticate"] == [insufficient(wire, "posts:read", "/all")]
    assert page.header("content-type") == "text/plain; charset=utf-8"


def test_scope_of_a_page_takes_the_place_of_the_issuers(served: Served, wire: Wire) -> None:
    visitor = served.main.token(scope="page:see")
    assert wire.get("/scoped", visitor).body == b"Success: alice\n"
    for method, token, missing in (
        ("GET", token_of(served.main), "page:see"),
        ("HEAD", token_of(served.main), "page:see"),
        ("POST", visitor, "page:change"),
        ("GET", served.others[STRICT].token(), "page:see"),  # its issuer wants none
    ):
        page = wire.ask(method, "/scoped", bearer(token))
        assert page.status == 403
        assert page.headers["www-authenticate"] == [insufficient(wire, missing, "/scoped")]
    assert wire.ask("POST", "/scoped", bearer(served.main.token(scope="page:change"))).status == 405
    check_problem(wire.get("/post", visitor), 403, [insufficient(wire, "posts:read")])


def test_scopes_are_read_from_other_claims(served: Served, wire: Wire) -> None:
    """Entra's tokens of applications have `roles`; `scope` is ignored then."""
    entra = served.others[ENTRA]
    assert wire.get("/post", entra.token(roles=["Posts.Read", "x"])).status == 200
    check_problem(wire.post(entra.token(roles=["Posts.Read"])), 403, [insufficient(wire, "Posts.Write")])
    check_problem(wire.get("/post", entra.token(scope="Posts.Read")), 403, [insufficient(wire, "Posts.Read")])


# Owners


def test_page_users_are_compared_by_issuer_and_name(served: Served, wire: Wire) -> None:
    """The same name at another issuer is another owner."""
    main, strict = served.main, served.others[STRICT]
    for path, owner, status in (
        ("/alice", main.token(scope=SCOPE), 200),
        ("/alice", main.token(scope=SCOPE, sub="bob"), 403),
        ("/alice", strict.token(), 403),
        ("/alice", strict.token(sub=f"{main.issuer}#alice"), 403),
        ("/two", main.token(scope=SCOPE, sub="bob"), 200),
        ("/two", main.token(scope=SCOPE), 403),
        ("/two", strict.token(), 200),
        ("/bare", main.token(scope=SCOPE), 403),
    ):
        answer = wire.get(path, owner)
        assert answer.status == status, path
        assert "www-authenticate" not in answer.headers
        assert answer.body.startswith(b"Success: " if status == 200 else b"Forbidden\n")


def test_account_is_not_the_owner_of_a_token(wire: Wire) -> None:
    assert wire.ask("GET", "/alice", basic("alice", PASSWORD)).status == 403
    assert wire.ask("GET", "/bare", basic("alice", PASSWORD)).body == b"Success: alice\n"


@pytest.mark.parametrize("owner", ["carol", "Jürgen 世界 🙂", 'eve" 200 "-', "a#b", "%0a%22"])
def test_page_and_access_log_show_the_owner(served: Served, wire: Wire, owner: str) -> None:
    """The page has the exact name, the log an unambiguous form of it."""
    path = f"/token?after={zlib.crc32(owner.encode())}"
    assert wire.get(path, token_of(served.main, sub=owner)).body == f"Success: {owner}\n".encode()
    served.daemon.wait_for(f'"GET {path} ')
    (line,) = [line for line in served.daemon.log.splitlines() if f'"GET {path} ' in line]
    name = line.split(" - ")[1].split(" [")[0]
    assert unquote(name) == f"{served.main.issuer}#{owner}"
    assert not set(name) & set(' "')


def test_page_allows_get_and_head_only(main: Issuer, wire: Wire) -> None:
    assert wire.ask("HEAD", "/token", bearer(token_of(main))).header("content-length") == "15"
    assert wire.ask("POST", "/token", bearer(token_of(main)), body=b"x").status == 405
    assert wire.ask("GET", "/token/below", bearer(token_of(main))).status == 404


# Settings of issuers


def test_token_signed_by_another_issuer_is_refused(served: Served, wire: Wire) -> None:
    strict, plain = served.others[STRICT], served.others[PLAIN]
    for signer, named in ((strict, plain), (plain, strict), (strict, served.main)):
        token = signer.token(iss=named.issuer, scope=SCOPE, email="x", aud=AUDIENCE)
        check_problem(wire.get("/post", token), 401, [invalid(wire)])
    assert wire.get("/post", strict.token()).status == 200
    assert wire.get("/post", plain.token(email="alice@mail.example")).status == 200


@each(
    "typ, status",
    [
        ("at+jwt", 200),
        ("application/at+jwt", 200),
        ("AT+JWT", 200),
        ("JWT", 401),
        ("application/jwt", 401),
        (ABSENT, 401),
        ("at", 401),
        ("", 401),
    ],
)
def test_token_type_must_be_configured(served: Served, wire: Wire, typ: Any, status: int) -> None:
    assert wire.get("/post", served.others[STRICT].token(header={"typ": typ})).status == status


def test_user_claim_names_the_owner(served: Served, wire: Wire) -> None:
    plain = served.others[PLAIN]
    assert wire.get("/token", plain.token(email="alice@mail.example")).body == b"Success: alice@mail.example\n"
    for email in (ABSENT, "", 7, None, ["alice"], "a\nb", "x" * 5000):
        check_problem(wire.get("/post", plain.token(email=email)), 401, [invalid(wire)])


def test_one_matching_audience_suffices(served: Served, wire: Wire) -> None:
    plain = served.others[PLAIN]
    for audience, status in (("elsewhere", 200), (AUDIENCE, 200), (["x", "elsewhere"], 200), ("x", 401), (ABSENT, 401)):
        assert wire.get("/post", plain.token(aud=audience, email="x")).status == status


def test_leeway_bounds_expiry(served: Served, wire: Wire) -> None:
    plain = served.others[PLAIN]
    late = plain.token(email="x", exp=plain.now() - 10)
    check_problem(wire.get("/post", late), 401, [invalid(wire, expired=True)])
    check_problem(wire.get("/post", plain.token(email="x", nbf=plain.now() + 20)), 401, [invalid(wire)])


@each(
    "changes, status",
    [
        ({}, 200),
        ({"client_id": "other-app"}, 200),
        ({"client_id": ["x", "app"]}, 200),
        ({"aud": "anything"}, 200),
        ({"token_use": "id"}, 401),
        ({"token_use": ABSENT}, 401),
        ({"token_use": None}, 401),
        ({"token_use": "Access"}, 401),
        ({"token_use": {"access": True}}, 401),
        ({"token_use": [["access"]]}, 401),
        ({"client_id": "elsewhere"}, 401),
        ({"client_id": "app,other-app"}, 401),
        ({"client_id": []}, 401),
        ({"level": "1"}, 401),
        ({"level": True}, 401),
        ({"level": 4}, 401),
        ({"username": ABSENT}, 401),
    ],
)
def test_required_claims_replace_an_audience(served: Served, wire: Wire, changes: dict[str, Any], status: int) -> None:
    """Cognito sends no `aud`."""
    cognito = served.others[COGNITO]
    whole = {"aud": ABSENT, "token_use": "access", "client_id": "app", "level": 1, "username": "alice"}
    assert wire.get("/post", cognito.token(**{**whole, **changes})).status == status


# Resource metadata (RFC 9728)


def test_resource_metadata_lists_issuers_and_scopes(served: Served, wire: Wire) -> None:
    """It is public, and ignores credentials."""
    issuers = [served.main, *(served.others[name] for name in (STRICT, PLAIN, COGNITO, ENTRA))]
    for credentials in ((), (bearer("x"),), (basic("alice", "wrong"),)):
        answer = wire.ask("GET", METADATA, *credentials)
        assert (answer.status, answer.header("content-type")) == (200, "application/json")
        assert answer.header("cache-control") == "no-store"
        document = json.loads(answer.body)
        assert document["resource"] == wire.origin
        assert document["authorization_servers"] == [issuer.issuer for issuer in issuers]
        scopes = {"posts:read", "posts:write", "Posts.Read", "Posts.Write"}
        assert set(document["scopes_supported"]) == scopes
        assert document["bearer_methods_supported"] == ["header"]
        head = wire.ask("HEAD", METADATA, *credentials)
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", answer.headers["content-length"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_resource_metadata_allow_get_and_head_only(wire: Wire, method: str) -> None:
    answer = wire.ask(method, METADATA)
    check_problem(answer, 405, None)
    assert "GET" in (answer.header("allow") or "")


@pytest.mark.parametrize("path", [f"{METADATA}/posts", f"{METADATA}/", "/.well-known", "/.well-known/x"])
def test_other_well_known_paths_are_404(wire: Wire, path: str) -> None:
    check_problem(wire.ask("GET", path), 404, None)


def test_metadata_url_has_the_scheme_of_a_trusted_proxy(wire: Wire) -> None:
    https = wire.origin.replace("http:", "https:")
    headers = (("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "192.0.2.1"))
    assert json.loads(wire.ask("GET", METADATA, headers=headers).body)["resource"] == https
    challenges = wire.ask("GET", "/post", headers=headers).headers["www-authenticate"]
    assert challenges == [challenge(wire).replace(wire.origin, https)]


@each("host", ['x"y', 'x", error="y', "x\\", "ä.example", "a b", "x/y", "user@x", "[::1", "x:y", ",", "<x>"])
def test_invalid_host_is_not_reflected(wire: Wire, host: str) -> None:
    answer = wire.ask("GET", "/post", host=host)
    assert answer.status in {400, 401}
    assert answer.headers.get("www-authenticate", ['Bearer realm="postd"']) == ['Bearer realm="postd"']
    assert wire.ask("GET", METADATA, host=host).status == 400


def test_valid_host_is_in_the_metadata_url(wire: Wire) -> None:
    challenges = wire.ask("GET", "/post", host="Posts.Example:8443").headers["www-authenticate"]
    assert challenges == [f'Bearer realm="postd", resource_metadata="http://posts.example:8443{METADATA}/post"']
    document = json.loads(wire.ask("GET", METADATA, host="Posts.Example:8443").body)
    assert document["resource"] == "http://posts.example:8443"


def test_public_url_overrides_host(tmp_path: Path) -> None:
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        settings = f'public_url = "https://posts.example"\napi.read = ["bearer"]\n{bearer_table(issuer)}'
        with serve(tmp_path, settings) as daemon, Wire(daemon) as wire:
            document = json.loads(wire.ask("GET", METADATA).body)
            challenges = wire.ask("GET", "/post").headers["www-authenticate"]
    assert document["resource"] == "https://posts.example"
    assert document.get("scopes_supported", []) == []
    assert challenges == [f'Bearer realm="postd", resource_metadata="https://posts.example{METADATA}/post"']


def test_token_without_configured_issuer_is_refused(main: Issuer, tmp_path: Path) -> None:
    with serve(tmp_path, 'api.read = ["bearer"]') as daemon, Wire(daemon) as wire:
        for token in (token_of(main), "x"):
            answer = wire.get("/post", token)
            assert answer.status == 401
            (line,) = answer.headers["www-authenticate"]
            assert line.startswith('Bearer realm="postd", error="invalid_token"')
            assert "resource_metadata" not in line  # there are none
        check_problem(wire.ask("GET", METADATA), 404, None)


# Opaque tokens

CLIENT_ID, CLIENT_SECRET = "postd at home", "s3cret: of/the+client %"
ACTIVE = {"sub": "alice", "aud": AUDIENCE, "scope": SCOPE, "hidden": HIDDEN}


@pytest.fixture(scope="module")
def opaque(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that introspects opaque tokens at its first issuer, and only has the keys of its second."""
    folder = tmp_path_factory.mktemp("opaque")
    (folder / "secret").write_text(f"{CLIENT_SECRET}\n")
    with Issuer(AUDIENCE, Key.make("ES256")) as main, Issuer(AUDIENCE, Key.make("ES256")) as plain:
        table = bearer_table(
            main,
            read_scope="posts:read",
            write_scope="posts:write",
            introspection_endpoint=f"{main.origin}{INTROSPECTION}",
            client_id=CLIENT_ID,
            client_secret_file="secret",
        )
        settings = 'api = {read = ["bearer"], write = ["bearer"]}\npage = [{path = "/token", schemes = ["bearer"]}]\n'
        settings += "throttle = {address_failures = 1000}\n"  # what these tests have refused is more than may fail
        with serve(folder, settings + table + bearer_table(plain)) as daemon, Wire(daemon) as wire:
            yield Served(daemon, wire, main, {PLAIN: plain})
        check_log(daemon.log, HIDDEN, CLIENT_SECRET, *secret_parts(wire.sent))
        # The client secret is sent to the introspection endpoint only.
        requests = [asked for issuer in (main, plain) for asked in issuer.asked if "authorization" in asked.headers]
        assert {asked.path for asked in requests} == {INTROSPECTION}
        assert plain.count(INTROSPECTION) == 0


def opaque_token(name: str) -> str:
    return f"0paque-{name}-c0ffee5ca1ab1e"


def test_opaque_token_is_introspected_once(opaque: Served) -> None:
    token, issuer = opaque_token("good"), opaque.main
    issuer.active[token] = {**ACTIVE, "iss": issuer.issuer, "exp": int(issuer.now()) + 600}
    before = len(issuer.asked)
    for _ in range(10):
        assert opaque.wire.get("/token", token).body == b"Success: alice\n"
        assert opaque.wire.post(token).status == 201
    (asked,) = [asked for asked in issuer.asked[before:] if asked.path == INTROSPECTION]
    assert (asked.method, asked.form["token"]) == ("POST", token)
    assert asked.headers["content-type"].startswith("application/x-www-form-urlencoded")
    user, _, password = base64.b64decode(asked.headers["authorization"].split()[1]).decode().partition(":")
    # Encoded as in a form before they are put into Basic (RFC 6749 §2.3.1).
    assert (user, password) == (quote_plus(CLIENT_ID), quote_plus(CLIENT_SECRET))


@each(
    "name, answer",
    [
        ("false", {**ACTIVE, "active": False}),
        ("text", {**ACTIVE, "active": "true"}),
        ("one", {**ACTIVE, "active": 1}),
        ("null", {**ACTIVE, "active": None}),
        ("absent", ACTIVE),
        ("list", {**ACTIVE, "active": [True]}),
        ("another-aud", {**ACTIVE, "active": True, "aud": "elsewhere"}),
        ("nested-aud", {**ACTIVE, "active": True, "aud": [[AUDIENCE]]}),
        ("another-iss", {**ACTIVE, "active": True, "iss": "https://elsewhere.example"}),
        ("bound", {**ACTIVE, "active": True, "cnf": {"jkt": "x"}}),
        ("exp-text", {**ACTIVE, "active": True, "exp": "4000000000"}),
        ("nbf", {**ACTIVE, "active": True, "nbf": 4_000_000_000}),
        ("sub-number", {**ACTIVE, "active": True, "sub": 7}),
        ("scope-number", {**ACTIVE, "active": True, "scope": 7}),
    ],
)
def test_opaque_token_must_be_active_and_for_this_audience(opaque: Served, name: str, answer: dict[str, Any]) -> None:
    token = opaque_token(name)
    with answering(opaque.main, Reply(json.dumps(answer).encode())):
        check_problem(opaque.wire.get("/post", token), 401, [invalid(opaque.wire)])
        check_problem(opaque.wire.post(token), 401, [invalid(opaque.wire)])


def test_active_token_may_be_expired_or_lack_a_scope(opaque: Served) -> None:
    opaque.main.active[opaque_token("late")] = {**ACTIVE, "exp": 1}
    late = opaque.wire.get("/post", opaque_token("late"))
    check_problem(late, 401, [invalid(opaque.wire, expired=True)])
    opaque.main.active[opaque_token("reader")] = {**ACTIVE, "scope": "posts:read"}
    assert opaque.wire.get("/post", opaque_token("reader")).status == 200
    check_problem(opaque.wire.post(opaque_token("reader")), 403, [insufficient(opaque.wire, "posts:write")])


def test_refusal_of_an_opaque_token_is_cached(opaque: Served) -> None:
    before = opaque.main.count(INTROSPECTION)
    for _ in range(20):
        assert opaque.wire.get("/post", opaque_token("unknown")).status == 401
    assert opaque.main.count(INTROSPECTION) - before <= 2


@contextmanager
def answering(issuer: Issuer, reply: Reply) -> Iterator[None]:
    """Replace the response of the introspection endpoint."""
    issuer.replies[INTROSPECTION] = reply
    yield
    del issuer.replies[INTROSPECTION]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("500", Reply(b"", 500)),
        ("401", Reply(b'{"active": true}', 401)),
        ("404", Reply(b"", 404)),
        ("204", Reply(b"", 204)),
        ("html", Reply(b"<html>Traceback</html>")),
        ("empty", Reply(b"")),
        ("array", Reply(b'[{"active": true}]')),
        ("text", Reply(b'"active"')),
        ("nested", Reply(b"[" * 100_000)),
        ("megabytes", Reply(b'{"active": true}' + b" " * 2_000_000)),
        ("bomb", Reply.bomb(b'{"active": true}')),
        ("dropped", Reply(b"", drop=True)),
        ("cut", Reply(b'{"active": true, "sub": "alice"}', drop=True, half=True)),
        ("elsewhere", Reply.redirect("https://elsewhere.example/introspect")),
    ],
)
def test_failed_introspection_is_503(opaque: Served, name: str, reply: Reply) -> None:
    """Without a challenge, on which a client would drop a valid token; the next request tries again."""
    token = opaque_token(f"failed-{name}")
    with answering(opaque.main, reply):
        answer = opaque.wire.get("/post", token)
        check_problem(answer, 503, None)
        assert int(answer.header("retry-after") or 0) > 0
    opaque.main.active[token] = ACTIVE
    assert opaque.wire.get("/post", token).status == 200


def test_redirect_of_the_introspection_endpoint_is_not_followed(opaque: Served) -> None:
    """A redirect would send the token and the client secret elsewhere; the fixture checks all requests at its end."""
    elsewhere = opaque.others[PLAIN]
    for status in (301, 302, 303, 307, 308):
        for url in (f"{elsewhere.origin}{INTROSPECTION}", "/elsewhere"):
            with answering(opaque.main, Reply(b"", status, {"Location": url})):
                check_problem(opaque.wire.get("/post", opaque_token("led-away")), 503, None)
    assert opaque.main.count("/elsewhere") == 0


def test_token_is_introspected_as_sent(opaque: Served) -> None:
    token = "0paque+/~._-c0ffee5ca1ab1e=="
    opaque.main.active[token] = ACTIVE
    assert opaque.wire.get("/token", token).body == b"Success: alice\n"


def test_slow_introspection_delays_no_other_request(opaque: Served) -> None:
    """Concurrent requests with the same token cause one introspection."""
    release, token, known = threading.Event(), opaque_token("slow"), opaque_token("known")
    opaque.main.active[token] = opaque.main.active[known] = ACTIVE
    assert opaque.wire.get("/post", known).status == 200
    asked = opaque.main.count(INTROSPECTION)
    with answering(opaque.main, Reply(before=release)), ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(get_alone, opaque.daemon, token) for _ in range(5)]
        opaque.main.wait_for_request(INTROSPECTION, after=asked)
        assert opaque.wire.get("/post", opaque.main.token(scope=SCOPE)).status == 200
        assert opaque.wire.get("/post", known).status == 200
        assert not any(future.done() for future in waiting)
        release.set()
        assert [future.result() for future in waiting] == [200] * 5
    assert opaque.main.count(INTROSPECTION) == asked + 1


def get_alone(daemon: Daemon, token: str) -> int:
    """Read on a connection of its own; return the status."""
    with Wire(daemon) as wire:
        return wire.get("/post", token).status


def test_jwt_is_not_introspected(opaque: Served) -> None:
    """Even an invalid one; and malformed tokens are not introspected."""
    before = opaque.main.count(INTROSPECTION)
    plain = opaque.others[PLAIN]
    good = opaque.main.token(scope=SCOPE)
    assert opaque.wire.get("/post", good).status == 200
    assert opaque.wire.get("/post", plain.token()).status == 200
    head, claims, _ = good.split(".")
    for token in (f"{head}.{claims}.x", opaque.main.token(exp=1), opaque.main.token(aud="x"), plain.token(iss="x")):
        check = opaque.wire.get("/post", token)
        assert (check.status, opaque.main.count(INTROSPECTION)) == (401, before)
    for text in ("", "two tokens", 'a"b', "ä", "a,b"):
        assert opaque.wire.get("/post", text).status == 401
    assert opaque.wire.get("/post", "x" * 9000).status == 431
    assert opaque.main.count(INTROSPECTION) == before


def test_forwarded_proto_of_an_untrusted_peer_is_ignored(opaque: Served) -> None:
    """The server has no trusted proxies."""
    headers = (("X-Forwarded-Proto", "https"),)
    assert json.loads(opaque.wire.ask("GET", METADATA, headers=headers).body)["resource"] == opaque.wire.origin


# Settings that end the start

IDP = 'issuer = "https://idp.example"\naudience = "x"\nclient_id = "x"\n'


@each(
    "tables, words",
    [
        ('[[bearer]]\nissuer = "http://idp.example"\naudience = "x"', ["bearer", "issuer", "http://idp.example"]),
        ('[[bearer]]\nissuer = "https://idp.example?x"\naudience = "x"', ["bearer", "issuer"]),
        ('[[bearer]]\naudience = "x"', ["bearer", "issuer"]),
        ('[[bearer]]\nissuer = "https://idp.example"\naudience = ""', ["bearer", "audience", "required_claims"]),
        ('[[bearer]]\nissuer = "https://idp.example"\naudience = []', ["bearer", "audience"]),
        (f'[[bearer]]\n{IDP}algorithms = ["RS256", "HS256"]', ["bearer", "algorithms", "RS256"]),
        (f'[[bearer]]\n{IDP}algorithms = ["none"]', ["bearer", "algorithms", "RS256"]),
        (f"[[bearer]]\n{IDP}algorithms = []", ["bearer", "algorithms"]),
        (f'[[bearer]]\n{IDP}jwks_uri = "http://idp.example/jwks"', ["bearer", "jwks_uri"]),
        (f'[[bearer]]\n{IDP}ca_file = "missing.pem"', ["bearer", "ca_file", "missing.pem", "No such file"]),
        (f'[[bearer]]\n{IDP}ca_file = "postd.toml"', ["bearer", "ca_file", "postd.toml"]),
        (
            f'[[bearer]]\n{IDP}client_secret_file = "missing"',
            ["bearer", "client_secret_file", "missing", "No such file"],
        ),
        (f'[[bearer]]\n{IDP}introspection_endpoint = "http://idp.example/i"', ["bearer", "introspection_endpoint"]),
        (f'[[bearer]]\n{IDP}client_secret = "x"', ["bearer", "client_secret", "unknown key"]),
        (f'[[bearer]]\n{IDP}read_scope = "a\\"b"', ["bearer", "read_scope"]),
        (f"[[bearer]]\n{IDP}[[bearer]]\n{IDP}", ["bearer", "https://idp.example"]),
        (f"listen = ['tcp:0']\napi.write = ['bearer']\n[[bearer]]\n{IDP}", ["listen", "plaintext-passwords"]),
    ],
)
def test_unusable_settings_fail_the_start(tmp_path: Path, tables: str, words: list[str]) -> None:
    (tmp_path / "postd.toml").write_text(tables)
    line = refuse_here(tmp_path, "-c", "postd.toml", "-s", "memory:")
    assert all(word in line for word in words), line
