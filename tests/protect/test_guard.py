"""The guard of protected resources: the cases of reference: Schemes and Basic, and rules with several schemes."""

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.portal import IRealm
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IAddress
from twisted.internet.task import Clock, Cooperator
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.static import Data
from zope.interface import implementer, providedBy
from zope.interface.verify import verifyObject

from postd.auth.credentials import (
    BearerCredentials,
    DigestCredentials,
    IBearerCredentials,
    IDigestCredentials,
    IPasswordCredentials,
    ISessionCredentials,
    PasswordCredentials,
    Refused,
    SessionCredentials,
)
from postd.auth.portal import CoroutinePortal
from postd.daemon.service import make_service
from postd.errors import ConfigError, StoreUnavailableError
from postd.front.request import HttpRequest
from postd.http.errors import Problem
from postd.http.peer import PeerResolver
from postd.http.views import ViewResource, error_page
from postd.protect.basic import BasicCredentialFactory
from postd.protect.bearer import AcceptedTokens, BearerCredentialFactory
from postd.protect.guard import AUTHORIZATION_MAX_BYTES, CredentialFactory, Guard, ProtectedResource, Realm
from postd.protect.mounted import MountedResources
from postd.protocol.digest import DigestResponse
from postd.reactor import IReactor
from postd.settings.loading import load_settings
from postd.web.name_pages import show_name
from tests.cases import each
from tests.helpers import InlineHashThreads, InMemoryApi, Response, forget_own, make_site, result_of
from tests.protect.errors import check_text_error
from tests.web.clients import (
    BCRYPT,
    PASSWORD,
    Challenge,
    Proof,
    account,
    ask_raw,
    basic,
    challenges_in,
    check_secret,
    recorded_log,
)
from tests.web.test_posts import check_problem
from tests.web.wire import Worker, ask, begin, begin_raw

JSON = {"Content-Type": "application/json"}
BODY = b'{"post":"x"}'
ALL = """
[digest]
algorithms = ["SHA-256", "MD5"]
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/digest"
schemes = ["digest"]
[[page]]
path = "/all"
schemes = ["session", "basic", "digest"]
[[page]]
path = "/all/bob"
schemes = ["basic"]
users = ["bob"]
[[page]]
path = "/session"
schemes = ["session"]
"""
BASIC = 'Basic realm="postd"'
FORM_CHALLENGE = 'Cookie realm="postd", form-action="/login", cookie-name=session'


@pytest.fixture
def api(make: Callable[..., InMemoryApi]) -> InMemoryApi:
    return make(ALL)


def log_in(api: InMemoryApi, username: str = "alice") -> dict[str, Any]:
    """Sign in by form; return the `Cookie` field of later requests."""
    form = urlencode({"username": username, "password": PASSWORD}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    cookie = ask(api, "POST", "/login", form, headers).header("Set-Cookie") or ""
    assert cookie.startswith("session=")
    return {"Cookie": cookie.partition(";")[0]}


def proof(api: InMemoryApi, path: str, **parts: str) -> dict[str, Any]:
    nonce = challenges_in(ask(api, parts.get("method", "GET"), path))[0].nonce
    return Proof(**{"nonce": nonce, "uri": path, **parts}).headers()


def field(value: str | bytes) -> dict[str, Any]:
    return {"Authorization": value}


def check_challenged(answer: Response, *lines: str) -> None:
    """Check the 401 of a page with the given challenges; by default with that of Basic."""
    assert (answer.status, answer.body) == (401, b"Unauthorized\n")
    assert answer.headers["www-authenticate"] == list(lines or [BASIC])
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"
    assert "set-cookie" not in answer.headers


def check_authenticated(answer: Response, username: str = "alice") -> None:
    assert (answer.status, answer.body) == (200, f"Success: {username}\n".encode())
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"
    assert "www-authenticate" not in answer.headers


def check_without_challenge(answer: Response, status: int) -> None:
    assert answer.status == status
    assert "www-authenticate" not in answer.headers
    assert "authentication-info" not in answer.headers


class ChallengeTests:
    @each("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "FOO", "get"])
    def test_missing_credentials_are_401_for_every_method(self, api: InMemoryApi, method: str) -> None:
        """Missing credentials are 401 for every method (reference: Schemes, G1, G4; Basic, A1)."""
        for path in ("/basic", "/basic/", "/basic/below", "/basic?query"):
            answer = ask(api, method, path, BODY if method == "POST" else None)
            answer.body = answer.body or (b"Unauthorized\n" if method == "HEAD" else b"")
            check_challenged(answer)

    def test_head_has_the_headers_of_get(self, api: InMemoryApi) -> None:
        """Head has the headers of GET (reference: Schemes, G2)."""
        for path, headers in (("/basic", {}), ("/basic", basic()), ("/session", {}), ("/all/bob", basic())):
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            got, head = (
                ask_raw(api.site, api.clock, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
                for method in ("GET", "HEAD")
            )
            assert head.header("Content-Length") == str(len(got.body))
            forget_own(got, head)  # a second may have passed
            assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    def test_challenges_have_a_fixed_order(self, api: InMemoryApi) -> None:
        """Digest before Basic, its algorithms as in the settings, whatever the order of the rule; one realm (reference:
        Schemes, G3).
        """
        lines = ask(api, "GET", "/all").headers["www-authenticate"]
        found = [Challenge.decode(line) for line in lines[:2]]
        assert [challenge.algorithm for challenge in found] == ["SHA-256", "MD5"]
        assert [challenge.realm for challenge in found] == ["postd", "postd"]
        assert lines[2:] == [BASIC]

    @pytest.mark.parametrize("rule", ["['basic', 'digest']", "['digest', 'basic']", "['basic', 'digest', 'basic']"])
    def test_challenges_of_the_api_have_the_same_order(self, make: Callable[..., InMemoryApi], rule: str) -> None:
        api = make(f"realm = 'the posts'\n[api]\nread = {rule}\nwrite = {rule}")
        for method, path in (("GET", "/post"), ("GET", "/post/1"), ("POST", "/post"), ("DELETE", "/post/1")):
            answer = ask(api, method, path)
            check_problem(answer, 401)
            digest, last = answer.headers["www-authenticate"]
            assert Challenge.decode(digest).realm == "the posts"
            assert last == 'Basic realm="the posts"'

    @each(
        "value",
        [
            "",
            " ",
            "Basic",
            "Basic ",
            "Foo x",
            "Bearer x",
            "Digest",
            "basic:",
            "Basicx",
            "YWxpY2U6eA==",
            b"\xff",
            "a" * 8000,
        ],
    )
    def test_unknown_scheme_is_challenged(self, api: InMemoryApi, value: str | bytes) -> None:
        """Unknown scheme is challenged (reference: Schemes, G8, G9)."""
        check_challenged(ask(api, "GET", "/basic", headers=field(value)))

    def test_credentials_of_a_scheme_outside_the_rule_are_401(self, api: InMemoryApi) -> None:
        check_challenged(ask(api, "GET", "/basic", headers=proof(api, "/digest")))
        check_challenged(ask(api, "GET", "/basic", headers=log_in(api)))
        answer = ask(api, "GET", "/digest", headers=basic())
        assert answer.status == 401
        assert len(challenges_in(answer)) == len(answer.headers["www-authenticate"]) == 2

    def test_proxy_authorization_is_ignored(self, api: InMemoryApi) -> None:
        """Proxy authorization is ignored (reference: Schemes, G14)."""
        check_challenged(ask(api, "GET", "/basic", headers={"Proxy-Authorization": basic()["Authorization"]}))
        check_authenticated(ask(api, "GET", "/basic", headers={**basic(), "Proxy-Authorization": "Basic x"}))

    def test_refused_write_changes_no_post(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nwrite = ["basic"]')
        api.add("untouched")
        wrong: list[dict[str, Any]] = [{}, basic(password="wrong"), field("Basic x"), field("Foo x")]
        for headers in wrong:
            for method, path in (("POST", "/post"), ("PUT", "/post/1"), ("DELETE", "/post/1"), ("POST", "/post/1")):
                check_problem(ask(api, method, path, BODY, {**JSON, **headers}), 401)
        assert json.loads(ask(api, "GET", "/post").body) == [{"id": 1, "post": "untouched"}]

    def test_any_field_value_is_401(self, api: InMemoryApi) -> None:
        names = st.sampled_from([b"Basic ", b"basic\t", b"Digest ", b"Bearer ", b""])
        value = st.tuples(names, st.binary(max_size=60)).map(b"".join)

        @given(value.map(lambda value: value.translate(None, bytes([*range(9), *range(10, 32), 127]))))
        def check(value: bytes) -> None:
            api.clock.advance(400)  # well-formed credentials count as a failure
            for path in ("/basic", "/all"):
                assert ask(api, "GET", path, headers=field(value)).status == 401

        check()


class AuthorizationFieldTests:
    @each("path", ["/basic", "/all", "/session", "/post"])
    def test_repeated_field_is_400(self, make: Callable[..., InMemoryApi], path: str) -> None:
        """Even if the values are equal (reference: Schemes, G7). A proxy may have checked either of them."""
        api = make('[api]\nread = ["basic"]\n' + ALL)
        good = basic()["Authorization"]
        for pair in ([good, good], [good, "Basic x"], ["Basic x", good], [good, ""], ["Bearer x", "Bearer y"]):
            lines = "".join(f"Authorization: {value}\r\n" for value in pair)
            for method in ("GET", "POST", "DELETE"):
                request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()
                if path == "/post" and method != "GET":
                    continue  # writing is open
                answer = ask_raw(api.site, api.clock, request)
                check_without_challenge(answer, 400)
                if path == "/post":
                    check_problem(answer, 400)
                else:
                    check_text_error(answer, 400)
                assert answer.header("Cache-Control") == "no-store"

    def test_folded_field_is_one_field_or_400(self, api: InMemoryApi) -> None:
        """RFC 9112 §5.2: obsolete line folding."""
        scheme, _, token = basic()["Authorization"].partition(" ")
        request = f"GET /basic HTTP/1.1\r\nHost: x\r\nAuthorization: {scheme}\r\n {token}\r\n\r\n".encode()
        assert ask_raw(api.site, api.clock, request).status in {200, 400}

    @pytest.mark.parametrize("path", ["/basic", "/digest", "/all"])
    def test_field_over_the_limit_is_431(self, api: InMemoryApi, path: str) -> None:
        """Over 8 KiB (reference: Schemes, G12, G13)."""
        for scheme in ("Basic ", "Digest ", "Foo ", ""):
            longest = scheme + "x" * (AUTHORIZATION_MAX_BYTES - len(scheme))
            assert ask(api, "GET", path, headers=field(longest)).status == 401
            answer = ask(api, "GET", path, headers=field(longest + "x"))
            check_without_challenge(answer, 431)
            assert answer.body == b"Request Header Fields Too Large\n"

    def test_431_has_its_reason_phrase(self, api: InMemoryApi) -> None:
        line = b"Authorization: Basic " + b"x" * 9000
        sent = begin_raw(api, b"GET /basic HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % line).transport.value()
        assert sent.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")

    @pytest.mark.parametrize("length", [16_000, 17_000, 70_000])
    def test_field_over_the_limit_of_the_head_is_431(self, api: InMemoryApi, length: int) -> None:
        line = b"Authorization: Basic " + b"x" * length
        answer = ask_raw(api.site, api.clock, b"GET /basic HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % line)
        check_without_challenge(answer, 431)


class BasicTests:
    def test_example_of_the_specification_is_accepted(self, make: Callable[..., InMemoryApi]) -> None:
        """Example of the specification is accepted (reference: Basic, A2)."""
        secret = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        api = make("", users=f"alice:{secret}\n")
        check_authenticated(ask(api, "GET", "/basic", headers=field("Basic YWxpY2U6c2VjcmV0")))

    def test_scheme_is_case_insensitive_and_followed_by_white_space(self, api: InMemoryApi) -> None:
        """Scheme is case insensitive and followed by white space (reference: Schemes, G5, G6)."""
        token = basic()["Authorization"].removeprefix("Basic ")
        for scheme in ("basic ", "BASIC ", "bAsIc ", "Basic   ", "Basic\t", "Basic \t ", "Basic\t "):
            check_authenticated(ask(api, "GET", "/basic", headers=field(scheme + token)))
        for scheme in ("Basic", "Basic,", "Basic=", "Basic:", "Básic ", "Basic  x ", ", Basic ", "Basic Basic "):
            check_challenged(ask(api, "GET", "/basic", headers=field(scheme + token)))

    def test_unknown_user_and_wrong_password_get_the_same_response(self, api: InMemoryApi) -> None:
        """The same bytes (reference: Basic, A3)."""
        wrong = [basic(password="wrong"), basic("unknown"), basic("unknown", "x"), basic("Alice"), basic("alice ")]
        wrong += [basic(""), basic(password=""), basic("x" * 2000), basic(password="x" * 5000), field("Basic x")]
        answers = [ask(api, "GET", "/basic", headers=headers) for headers in wrong]
        for answer in answers:
            check_challenged(answer)
        forget_own(*answers)
        assert len({json.dumps(answer.headers) for answer in answers}) == 1

    def test_password_may_have_colons_spaces_and_any_unicode(self, make: Callable[..., InMemoryApi]) -> None:
        """Composed and decomposed characters are the same (reference: Basic, A4, A5)."""
        lines = ""
        people = [
            ("bob", "p:w"),
            ("colon", ":"),
            ("jürgen", "пароль"),
            ("space", " a b "),
            ("key", "🔑"),
            ("am\u00e9", "\u00e9"),
        ]
        for name, password in people:
            lines += f"{name}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"
        api = make("", users=lines)
        for name, password in [*people, ("ame\u0301", "e\u0301")]:
            answer = ask(api, "GET", "/basic", headers=basic(name, password))
            check_authenticated(answer, name.replace("e\u0301", "\u00e9"))
        for name, password in (("bob", "p"), ("colon", ""), ("space", "a b"), ("colon", "::")):
            check_challenged(ask(api, "GET", "/basic", headers=basic(name, password)))

    def test_user_pass_in_latin_1_is_the_same(self, make: Callable[..., InMemoryApi]) -> None:
        """As requests, aiohttp, libsoup, Qt and Java send it (reference: Basic, A6)."""
        api = make("", users=f"jürgen:{bcrypt.hashpw('pässwörd'.encode(), bcrypt.gensalt(4)).decode()}\n")
        for encoding in ("latin-1", "utf-8", "latin-1"):
            answer = ask(api, "GET", "/basic", headers=basic("jürgen", "pässwörd", encoding))
            check_authenticated(answer, "jürgen")
        for password in ("passwörd", "pässwört", "pÃ¤sswÃ¶rd"):
            check_challenged(ask(api, "GET", "/basic", headers=basic("jürgen", password, "latin-1")))

    @each(
        "token",
        [
            *("", "Ym9iOnA6dw", "YWxp!!@@Y2U6cw==", "YWxp Y2U6cw==", "YWxpY2U=", "====", "alice:secret", "_-__"),
            *(
                "asO8cmdlbjp4",
                "avxyZ2VuOng=",
                "YWwKaWNlOnM=",
                "YWxpY2U6cwA=",
                "YWxpY2U6cw==YWxpY2U6cw==",
                "YWxpY2U6cx==",
            ),
        ],
    )
    def test_malformed_credentials_are_challenged(self, api: InMemoryApi, token: str) -> None:
        """Malformed credentials are challenged (reference: Basic, A6-A10; Schemes, G9)."""
        check_challenged(ask(api, "GET", "/basic", headers=field(f"Basic {token}")))

    def test_correct_credentials_in_invalid_base64_are_401(self, make: Callable[..., InMemoryApi]) -> None:
        """Other servers accept each of these (reference: Basic, A7, A8)."""
        api = make("", users=account("bob"))
        token = basic("bob")["Authorization"].removeprefix("Basic ")
        assert token.endswith("=")
        check_authenticated(ask(api, "GET", "/basic", headers=field(f"Basic {token}")), "bob")
        for written in (
            token.rstrip("="),
            f"{token}=",
            f"{token[:4]}!!{token[4:]}",
            f"{token[:4]} {token[4:]}",
            f"{token},",
        ):
            check_challenged(ask(api, "GET", "/basic", headers=field(f"Basic {written}")))

    def test_empty_password_never_authenticates(self, make: Callable[..., InMemoryApi], tmp_path: Path) -> None:
        """Empty password never authenticates (reference: Basic, A11)."""
        with pytest.raises((ConfigError, ValueError), match=r"users: line 2: the hash is empty"):
            make("", users=f"alice:{BCRYPT}\nbob:\n")
        with pytest.raises((ConfigError, ValueError), match=r"users: line 1: the hash is plain text"):
            make("", users="bob:secret\n")
        check_challenged(ask(make(ALL), "GET", "/basic", headers=basic("bob", "")))

    def test_comment_in_the_user_file_is_no_account(self, make: Callable[..., InMemoryApi]) -> None:
        """Comment in the user file is no account (reference: Basic, A12)."""
        api = make("", users=f"#x:{BCRYPT}\n# y:{BCRYPT}\nalice:{BCRYPT}\n")
        for name in ("#x", "x", "# y", "y", " y"):
            check_challenged(ask(api, "GET", "/basic", headers=basic(name)))
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))

    def test_public_listener_without_tls_is_a_configuration_error(self, tmp_path: Path) -> None:
        """Public listener without TLS is a configuration error (reference: Basic, A13)."""
        loaded = load_settings(None, {"users": "users", "listen": ["tcp:0:interface=0.0.0.0"]}, tmp_path)
        with pytest.raises(ConfigError, match="open-writes"):
            make_service(loaded, reactor=cast(IReactor, reactor))
        (tmp_path / "postd.toml").write_text('[api]\nwrite = ["basic"]')
        loaded = load_settings("postd.toml", {"users": "users", "listen": ["tcp:0:interface=0.0.0.0"]}, tmp_path)
        with pytest.raises(ConfigError, match="plaintext-passwords"):
            make_service(loaded, reactor=cast(IReactor, reactor))

    def test_changed_user_file_is_loaded(self, make: Callable[..., InMemoryApi]) -> None:
        """A cached password is no longer valid then."""
        api = make(ALL)
        assert api.users is not None
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))
        api.users.write_text(account("carol"))
        api.clock.advance(2)
        check_challenged(ask(api, "GET", "/basic", headers=basic()))
        check_authenticated(ask(api, "GET", "/basic", headers=basic("carol")), "carol")


class ThrottleTests:
    @pytest.fixture
    def hashed_passwords(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The passwords for which a hash was computed."""
        passwords: list[str] = []
        run = InlineHashThreads.run

        def noting(self: InlineHashThreads, function: Callable[..., Any], *arguments: Any) -> Any:
            passwords.append(arguments[-1])
            return run(self, function, *arguments)

        monkeypatch.setattr(InlineHashThreads, "run", noting)
        return passwords

    def test_eleventh_attempt_is_429_without_hashing(self, api: InMemoryApi, hashed_passwords: list[str]) -> None:
        """Whether or not the password is correct, until the first failure expires (reference: Basic, A14)."""
        for n in range(10):
            check_challenged(ask(api, "GET", "/basic", headers=basic(password=f"wrong {n}")))
            api.clock.advance(1)
        assert len(hashed_passwords) == 10
        for password in (PASSWORD, "wrong"):
            answer = ask(api, "GET", "/basic", headers=basic(password=password))
            check_without_challenge(answer, 429)
            assert answer.body == b"Too Many Requests\n"
            assert answer.header("Retry-After") == "290"
        assert len(hashed_passwords) == 10
        api.clock.advance(289)
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)
        api.clock.advance(1)
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))

    def test_cached_password_is_429_beyond_the_limit(self, api: InMemoryApi) -> None:
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))
        for n in range(10):
            ask(api, "GET", "/basic", headers=basic(password=f"wrong {n}"))
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)

    def test_correct_password_is_hashed_once(self, api: InMemoryApi, hashed_passwords: list[str]) -> None:
        for _ in range(5):
            check_authenticated(ask(api, "GET", "/basic", headers=basic()))
        assert hashed_passwords == [PASSWORD]

    def test_both_encodings_share_the_limit_and_the_cache(
        self, make: Callable[..., InMemoryApi], hashed_passwords: list[str]
    ) -> None:
        api = make("", users=account("jürgen"))
        for encoding in ("latin-1", "utf-8") * 5:
            check_authenticated(ask(api, "GET", "/basic", headers=basic("jürgen", encoding=encoding)), "jürgen")
        assert len(hashed_passwords) == 1
        for encoding in ("latin-1", "utf-8") * 5:
            check_challenged(ask(api, "GET", "/basic", headers=basic("jürgen", "wröng", encoding)))
        assert len(hashed_passwords) == 11
        for encoding in ("latin-1", "utf-8"):
            check_without_challenge(ask(api, "GET", "/basic", headers=basic("jürgen", encoding=encoding)), 429)

    def test_basic_digest_and_form_share_one_limit(self, api: InMemoryApi) -> None:
        form = urlencode({"username": "alice", "password": "wrong"}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        for _ in range(3):
            assert ask(api, "GET", "/basic", headers=basic(password="wrong")).status == 401
            assert ask(api, "GET", "/digest", headers=proof(api, "/digest", password="wrong")).status == 401
            assert ask(api, "POST", "/login", form, kind).status == 401
        check_challenged(ask(api, "GET", "/basic", headers=basic(password="wrong")))
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)
        check_without_challenge(ask(api, "GET", "/digest", headers=proof(api, "/digest")), 429)
        check_without_challenge(ask(api, "POST", "/login", form, kind), 429)

    def test_unknown_user_beyond_the_limit_is_429(self, api: InMemoryApi, hashed_passwords: list[str]) -> None:
        statuses = [ask(api, "GET", "/basic", headers=basic("unknown")).status for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert len(hashed_passwords) == 10

    def test_another_account_and_another_address_are_not_throttled(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('trusted_proxies = ["127.0.0.1"]')
        for _ in range(11):
            last = ask(api, "GET", "/basic", headers=basic(password="wrong"))
        assert last.status == 429
        check_authenticated(ask(api, "GET", "/basic", headers=basic("bob")), "bob")
        check_authenticated(ask(api, "GET", "/basic", headers={**basic(), "X-Forwarded-For": "198.51.100.7"}))
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)

    def test_forwarded_address_of_an_untrusted_peer_is_ignored(self, api: InMemoryApi) -> None:
        headers = [{**basic(password="wrong"), "X-Forwarded-For": f"198.51.100.{n}"} for n in range(11)]
        assert [ask(api, "GET", "/basic", headers=each).status for each in headers] == [401] * 10 + [429]

    def test_address_has_a_limit_for_all_accounts(self, make: Callable[..., InMemoryApi]) -> None:
        api = make("[throttle]\naddress_failures = 4")
        for n in range(4):
            check_challenged(ask(api, "GET", "/basic", headers=basic(f"unknown {n}")))
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)
        check_without_challenge(ask(api, "GET", "/basic", headers=basic("bob")), 429)

    def test_account_has_a_limit_from_all_addresses(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('trusted_proxies = ["127.0.0.1"]\n[throttle]\naccount_failures = 4')
        for n in range(4):
            headers = {**basic(password="wrong"), "X-Forwarded-For": f"198.51.100.{n}"}
            check_challenged(ask(api, "GET", "/basic", headers=headers))
        check_without_challenge(ask(api, "GET", "/basic", headers=basic()), 429)
        check_authenticated(ask(api, "GET", "/basic", headers=basic("bob")), "bob")

    def test_ipv6_network_counts_as_one_address(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('trusted_proxies = ["127.0.0.1"]\n[throttle]\naddress_failures = 4')
        for n in range(4):
            headers = {**basic(f"unknown {n}"), "X-Forwarded-For": f"2001:db8::{n}:{n}"}
            check_challenged(ask(api, "GET", "/basic", headers=headers))
        for forwarded, status in (("2001:db8::ffff:1:2:3", 429), ("2001:db8:0:1::1", 200), ("[2001:db8::9]:80", 429)):
            headers = {**basic(), "X-Forwarded-For": forwarded}
            assert ask(api, "GET", "/basic", headers=headers).status == status

    def test_success_resets_the_failures_of_the_account_but_not_of_the_address(
        self, make: Callable[..., InMemoryApi]
    ) -> None:
        api = make("[throttle]\nfailures = 3\naddress_failures = 6")
        for _ in range(3):
            for _ in range(2):
                check_challenged(ask(api, "GET", "/basic", headers=basic(password="wrong")))
            last = ask(api, "GET", "/basic", headers=basic())
            if last.status == 429:
                break
            check_authenticated(last)
        check_without_challenge(last, 429)

    def test_malformed_credentials_do_not_count_as_a_failure(self, api: InMemoryApi) -> None:
        for _ in range(15):
            for value in ("Basic x", "Basic YWxpY2U=", "Basic", "Foo x"):
                check_challenged(ask(api, "GET", "/basic", headers=field(value)))
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))


class RuleTests:
    """Rules of pages, with one scheme or several."""

    def test_any_scheme_of_the_rule_authenticates(self, api: InMemoryApi) -> None:
        digest = (proof(api, "/all"), proof(api, "/all", algorithm="SHA-256"))
        for headers in (basic(), *digest, log_in(api)):
            check_authenticated(ask(api, "GET", "/all", headers=headers))
        for headers in (basic(), proof(api, "/all", method="HEAD"), log_in(api)):
            assert ask(api, "HEAD", "/all", headers=headers).status == 200

    def test_page_varies_by_authorization_and_cookie(self, api: InMemoryApi) -> None:
        """Page varies by authorization and cookie (reference: Schemes, G15)."""
        answer = ask(api, "GET", "/all", headers=basic())
        assert answer.header("Vary") == "Authorization, Cookie"
        assert answer.header("X-Content-Type-Options") == "nosniff"

    def test_other_method_with_credentials_is_405(self, api: InMemoryApi) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH", "FOO", "OPTIONS"):
            answer = ask(api, method, "/basic", BODY, basic())
            check_without_challenge(answer, 405)
            assert answer.header("Allow") == "GET, HEAD"
            assert answer.body == b"Method Not Allowed\n"

    def test_path_below_a_page_with_credentials_is_404(self, api: InMemoryApi) -> None:
        for path in ("/basic/", "/basic/below", "/basic//", "/basic/%2e%2e/post"):
            check_challenged(ask(api, "GET", path))
            answer = ask(api, "GET", path, headers=basic())
            assert (answer.status, answer.body) == (404, b"Not Found\n")

    def test_user_outside_the_users_of_a_page_is_403(self, api: InMemoryApi) -> None:
        """Without a challenge, as they are authenticated (reference: Schemes, G10)."""
        check_authenticated(ask(api, "GET", "/all/bob", headers=basic("bob")), "bob")
        for method in ("GET", "HEAD", "POST"):
            for path in ("/all/bob", "/all/bob/below"):
                answer = ask(api, method, path, headers=basic("alice"))
                check_without_challenge(answer, 403)
                assert answer.body == (b"" if method == "HEAD" else b"Forbidden\n")
                assert answer.header("Cache-Control") == "no-store"
        check_challenged(ask(api, "GET", "/all/bob", headers=basic("bob", "wrong")))
        check_challenged(ask(api, "GET", "/all/bob"))

    def test_rule_of_the_nearest_page_applies(self, api: InMemoryApi) -> None:
        """The rule of `/all` does not apply to `/all/bob`."""
        check_challenged(ask(api, "GET", "/all/bob", headers=log_in(api, "bob")))
        assert len(ask(api, "GET", "/all/other").headers["www-authenticate"]) == 3

    def test_digest_user_outside_the_users_of_a_page_is_403(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[[page]]\npath = "/digest"\nschemes = ["digest"]\nusers = ["bob"]')
        assert ask(api, "GET", "/digest", headers=proof(api, "/digest")).status == 403
        check_authenticated(ask(api, "GET", "/digest", headers=proof(api, "/digest", username="bob")), "bob")

    def test_user_names_are_compared_in_normalized_form(self, make: Callable[..., InMemoryApi]) -> None:
        page = '[[page]]\npath = "/basic"\nschemes = ["basic"]\nusers = ["{}"]'
        for name in ("am\u00e9", "ame\u0301"):
            api = make(page.format(name), users=account("am\u00e9"))
            check_authenticated(ask(api, "GET", "/basic", headers=basic("ame\u0301")), "am\u00e9")

    def test_page_with_session_only_redirects_to_the_form(self, api: InMemoryApi) -> None:
        for method, location in (("GET", "/?next=/session"), ("HEAD", "/?next=/session"), ("POST", "/")):
            answer = ask(api, method, "/session")
            check_without_challenge(answer, 302)
            assert answer.header("Location") == location
            assert answer.header("Cache-Control") == "no-store"
            assert "set-cookie" not in answer.headers
        stale = ask(api, "GET", "/session", headers={"Cookie": "session=" + "A" * 43})
        assert (stale.status, stale.header("Location")) == (302, "/?next=/session")
        assert (stale.header("Set-Cookie") or "").startswith("session=; Path=/; Expires=Thu, 01 Jan 1970")
        check_authenticated(ask(api, "GET", "/session", headers=log_in(api)))
        assert ask(api, "GET", "/session", headers=basic()).status == 302

    def test_authorization_field_takes_precedence_over_a_cookie(self, api: InMemoryApi) -> None:
        cookie = log_in(api, "bob")
        check_authenticated(ask(api, "GET", "/all", headers=cookie), "bob")
        check_authenticated(ask(api, "GET", "/all", headers={**cookie, **basic()}), "alice")
        assert ask(api, "GET", "/all", headers={**cookie, **basic(password="wrong")}).status == 401
        check_authenticated(ask(api, "GET", "/all", headers={**cookie, "Authorization": "Bearer x"}), "bob")


class ApiRuleTests:
    def test_api_is_open_by_default(self, make: Callable[..., InMemoryApi]) -> None:
        api = make("")
        assert ask(api, "POST", "/post", BODY, JSON).status == 201
        answer = ask(api, "GET", "/post")
        assert (answer.status, answer.header("Cache-Control")) == (200, "no-cache")

    def test_rule_with_open_and_another_scheme_is_open(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic", "open"]\nwrite = ["open", "digest"]')
        assert ask(api, "GET", "/post").status == 200
        assert ask(api, "GET", "/post").header("Cache-Control") == "no-cache"
        assert ask(api, "POST", "/post", BODY, JSON).status == 201

    def test_read_and_write_rules_are_independent(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["open"]\nwrite = ["basic"]')
        check_problem(ask(api, "POST", "/post", BODY, JSON), 401)
        answer = ask(api, "POST", "/post", BODY, {**JSON, **basic()})
        assert (answer.status, answer.body) == (201, b"Success a Post!\n")
        for method in ("GET", "HEAD"):
            assert ask(api, method, "/post").status == ask(api, method, "/post/1").status == 200
        assert ask(api, "GET", "/post").header("Cache-Control") == "no-cache"
        check_problem(ask(api, "PUT", "/post/1", BODY, JSON), 401)
        assert ask(api, "PUT", "/post/1", BODY, {**JSON, **basic("bob")}).status == 200
        check_problem(ask(api, "DELETE", "/post/1"), 401)
        assert ask(api, "DELETE", "/post/1", headers=basic()).status == 200

    def test_write_rule_does_not_give_read_access(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic"]\nwrite = ["open"]')
        assert ask(api, "POST", "/post", BODY, JSON).status == 201
        for method, path in (("GET", "/post"), ("GET", "/post/1"), ("GET", "/post?limit=1")):
            check_problem(ask(api, method, path), 401)
            assert ask(api, method, path, headers=basic()).status == 200
        head = ask(api, "HEAD", "/post")
        assert (head.status, head.body, head.headers["www-authenticate"]) == (401, b"", [BASIC])

    def test_protected_resource_is_not_cached(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic", "session"]\nwrite = ["open"]')
        api.add("one")
        for headers in (basic(), log_in(api)):
            for path in ("/post", "/post/1", "/post?limit=1"):
                answer = ask(api, "GET", path, headers=headers)
                assert (answer.status, answer.header("Cache-Control")) == (200, "private, no-store")
                etag = {"If-None-Match": answer.header("ETag") or ""}
                again = ask(api, "GET", path, headers={**headers, **etag})
                assert (again.status, again.header("Cache-Control")) == (304, "private, no-store")
                head = ask(api, "HEAD", path, headers=headers)
                assert (head.status, head.header("Cache-Control")) == (200, "private, no-store")
                check_problem(ask(api, "GET", path, headers=etag), 401)
            assert ask(api, "GET", "/post/2", headers=headers).header("Cache-Control") == "no-store"

    def test_request_errors_are_sent_only_after_authentication(self, make: Callable[..., InMemoryApi]) -> None:
        """Before it, 404, 405, 412, 415 and 422 are 401."""
        api = make('[api]\nread = ["basic"]\nwrite = ["basic"]')
        api.add("one")
        requests: list[tuple[str, str, int, dict[str, Any]]] = [
            ("GET", "/post/2", 404, {}),
            ("GET", "/post/x", 404, {}),
            ("GET", "/post/1/2", 404, {}),
            ("GET", "/post/", 404, {}),
            ("GET", "/post?limit=x", 400, {}),
            ("DELETE", "/post/2", 404, {}),
            ("DELETE", "/post/1", 412, {"If-Match": '"x"'}),
            ("PATCH", "/post/1", 405, {}),
            ("FOO", "/post", 405, {}),
            ("get", "/post", 405, {}),
            ("POST", "/post/1", 405, {}),
            ("POST", "/post", 415, {}),
            ("POST", "/post", 422, {**JSON, "X": "{}"}),
        ]
        for method, path, status, headers in requests:
            body = headers.get("X", "x").encode()
            answer = ask(api, method, path, body, headers)
            check_problem(answer, 401)
            assert "allow" not in answer.headers
            assert ask(api, method, path, body, {**headers, **basic()}).status == status

    def test_unknown_method_needs_the_write_rule(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["open"]\nwrite = ["basic"]')
        for method in ("PATCH", "FOO", "TRACE", "get", "head"):
            check_problem(ask(api, method, "/post"), 401)
        assert ask(api, "PATCH", "/post", headers=basic()).status == 405

    def test_api_with_session_only_has_a_challenge_with_the_form(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["session"]\nwrite = ["session"]')
        for method in ("GET", "POST"):
            for headers in ({}, basic(), {"Cookie": "session=" + "A" * 43}):
                answer = ask(api, method, "/post", headers=headers)
                check_problem(answer, 401)
                assert answer.headers["www-authenticate"] == [FORM_CHALLENGE]
        assert ask(api, "GET", "/post", headers=log_in(api)).status == 200

    def test_rule_applies_to_all_spellings_of_api_paths_only(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic"]\nwrite = ["basic"]')
        for path in ("/%70ost", "/post?x", "/post/", "/post/%31"):
            check_problem(ask(api, "GET", path), 401)
        for path in ("/POST", "/postal", "//post", "/post%2F1", "/nothing"):
            check_text_error(ask(api, "GET", path), 404)


class OpenRuleTests:
    """Credentials where none are required: those of all schemes that have accounts or issuers are checked."""

    RULES = (
        "",
        '[api]\nread = ["open", "digest"]\nwrite = ["session", "open"]\n',
        '[api]\nread = ["open"]\nwrite = ["open"]\n[board]\nenabled = false\n',
    )

    def send(self, api: InMemoryApi, method: str, headers: dict[str, Any]) -> tuple[Response, str]:
        """Send a request to the API; return the response, and what the access log has about its client."""
        body, fields = (BODY, JSON | headers) if method == "POST" else (None, headers)
        with recorded_log(api) as events:
            answer = ask(api, method, "/post", body, fields)
        lines = "\n".join(event["lines"] for event in events if event["log_namespace"] == "postd.access")
        line = lines.splitlines()[-1]
        (scheme,) = re.findall(r" scheme=(\S+) ", line)
        return answer, f"{line.split()[2]} {scheme}"

    @each("rules", RULES)
    @each("method", ["GET", "POST"])
    def test_right_credentials_give_the_identity(
        self, make: Callable[..., InMemoryApi], rules: str, method: str
    ) -> None:
        api = make(rules)
        plain, client = self.send(api, method, {})
        assert client == "- -"
        nonce = challenges_in(ask(api, "GET", "/digest"))[0].nonce
        digest = Proof(nonce=nonce, method=method, uri="/post").headers()
        for scheme, headers in (("basic", basic()), ("digest", digest), ("session", log_in(api))):
            answer, client = self.send(api, method, headers)
            assert client == f"alice {scheme}"
            assert answer.status == plain.status
            for name in ("cache-control", "vary", "content-type", "set-cookie"):
                assert answer.headers.get(name) == plain.headers.get(name)
            assert (answer.header("Authentication-Info") is not None) == (scheme == "digest")

    @each("rules", RULES)
    @each("method", ["GET", "POST"])
    @each(
        "headers",
        [
            basic(password="wrong"),
            basic("carol"),
            field("Basic"),
            field("Basic x"),
            field("Digest x"),
        ],
    )
    def test_wrong_credentials_are_401_with_all_challenges(
        self, make: Callable[..., InMemoryApi], rules: str, method: str, headers: dict[str, Any]
    ) -> None:
        api = make(rules)
        answer, _ = self.send(api, method, headers)
        check_problem(answer, 401)
        assert [line.partition(" ")[0] for line in answer.headers["www-authenticate"]] == ["Digest", "Basic"]
        assert json.loads(ask(api, "GET", "/post").body) == []

    @each("method", ["GET", "POST"])
    @each(
        "headers",
        [
            field("Bearer x"),  # there are no issuers
            field("Negotiate x"),
            field(""),
            {"Cookie": "session=" + "A" * 43},
            {"Cookie": "session=x"},
            {"Cookie": "other=x"},
            {"Cookie": "session=" + "A" * 43, "Authorization": "Foo x"},
        ],
    )
    def test_others_count_as_none(self, make: Callable[..., InMemoryApi], method: str, headers: dict[str, Any]) -> None:
        answer, client = self.send(make(""), method, headers)
        assert (answer.status, client) == (200 if method == "GET" else 201, "- -")
        assert "set-cookie" not in answer.headers

    def test_without_a_user_file_nothing_is_checked(self) -> None:
        with closing(InMemoryApi()) as api:
            for headers in (basic(password="wrong"), field("Digest x"), {"Authorization": ["Basic x", "Basic y"]}):
                assert ask(api, "GET", "/post", None, headers).status == 200

    def test_repeated_field_is_400(self, make: Callable[..., InMemoryApi]) -> None:
        check_problem(ask(make(""), "GET", "/post", None, {"Authorization": ["Basic x", "Basic y"]}), 400)

    def test_failures_are_throttled(self, make: Callable[..., InMemoryApi]) -> None:
        api = make("[throttle]\nfailures = 2\n")
        for _ in range(2):
            check_problem(ask(api, "GET", "/post", None, basic(password="wrong")), 401)
        check_problem(ask(api, "GET", "/post", None, basic()), 429)
        assert ask(api, "GET", "/post").status == 200

    @each("headers", [basic(), {}], ids=["basic", "session"])
    def test_cross_site_write_with_credentials_is_403(
        self, make: Callable[..., InMemoryApi], headers: dict[str, Any]
    ) -> None:
        api = make("")
        known = headers or log_in(api)
        cross_site = known | {"Sec-Fetch-Site": "cross-site"}
        check_problem(ask(api, "POST", "/post", BODY, JSON | cross_site), 403)
        assert ask(api, "GET", "/post", None, cross_site).status == 200
        assert json.loads(ask(api, "GET", "/post").body) == []

    def test_store_that_is_away_is_503(self, make: Callable[..., InMemoryApi]) -> None:
        api = make("")
        session = log_in(api)
        result_of(api.store.stop())
        check_problem(ask(api, "GET", "/post", None, session), 503)


class OptionsTests:
    PREFLIGHT = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}  # noqa: RUF012 - a constant

    @pytest.mark.parametrize("rule", ["['basic']", "['digest', 'session']", "['open']"])
    def test_options_on_the_api_needs_no_credentials(self, make: Callable[..., InMemoryApi], rule: str) -> None:
        """OPTIONS on the API needs no credentials (reference: Schemes, G18)."""
        api = make(f"[api]\nread = {rule}\nwrite = {rule}")
        for headers in (
            {},
            self.PREFLIGHT,
            basic(password="wrong"),
            {**self.PREFLIGHT, "Sec-Fetch-Site": "cross-site"},
        ):
            for path, allow in (("/post", "GET, HEAD, OPTIONS, POST"), ("/post/1", "DELETE, GET, HEAD, OPTIONS, PUT")):
                answer = ask(api, "OPTIONS", path, headers=headers)
                check_without_challenge(answer, 204)
                assert (answer.header("Allow"), answer.body) == (allow, b"")
                assert not [name for name in answer.headers if name.startswith("access-control-")]

    @pytest.mark.parametrize("path", ["/basic", "/all", "/session", "/basic/below"])
    def test_preflight_on_a_page_is_204_without_cors_fields(self, api: InMemoryApi, path: str) -> None:
        answer = ask(api, "OPTIONS", path, headers=self.PREFLIGHT)
        check_without_challenge(answer, 204)
        assert answer.body == b""
        assert not [name for name in answer.headers if name.startswith("access-control-")]

    def test_incomplete_preflight_is_challenged(self, api: InMemoryApi) -> None:
        for method, headers in (
            ("OPTIONS", {"Origin": "http://elsewhere"}),
            ("OPTIONS", {"Access-Control-Request-Method": "GET"}),
            ("GET", self.PREFLIGHT),
            ("POST", self.PREFLIGHT),
            ("options", self.PREFLIGHT),
        ):
            check_challenged(ask(api, method, "/basic", headers=headers))


class FolderTests:
    @pytest.fixture
    def files(self, make: Callable[..., InMemoryApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InMemoryApi:
        folder = tmp_path / "files"
        (folder / "below").mkdir(parents=True)
        for path in ("a.txt", "index.html", "below/b.txt"):
            (folder / path).write_text("TOP SECRET")
        page = '[[page]]\npath = "{}"\nschemes = {}\nfiles = "{}"\n'
        api = make(page.format("/files", ["basic"], folder) + page.format("/deep/files", ["digest"], folder))
        # Twisted sends files with the real reactor's cooperator.
        cooperator = Cooperator(scheduler=lambda call: api.clock.callLater(0, call))
        monkeypatch.setattr("twisted.internet._producer_helpers.cooperate", cooperator.cooperate)
        return api

    @pytest.mark.parametrize(
        "target",
        [
            *("/files", "/files/", "/files/a.txt", "/files//a.txt", "/files/./a.txt", "/files/../files/a.txt"),
            *(
                "/%66iles/a.txt",
                "/files/%61.txt",
                "/files/a.txt?x",
                "/files/a.txt;x",
                "/files/below/b.txt",
                "//files/a.txt",
            ),
            *("/files%2Fa.txt", "/./files/a.txt", "/x/../files/a.txt", "/FILES/a.txt", "http://x/files/a.txt", "*"),
            *("/deep/files/a.txt", "/deep/files", "/deep%2Ffiles/a.txt", "/deep//files/a.txt", "/deep"),
            *(
                "http://x//files/a.txt",
                "/post/../files/a.txt",
                "/deep/files/../files/a.txt",
                "/\\files/a.txt",
            ),
        ],
    )
    def test_no_spelling_of_a_path_bypasses_the_guard(self, files: InMemoryApi, target: str) -> None:
        for method in ("GET", "HEAD", "POST", "OPTIONS", "get"):
            answer = ask_raw(files.site, files.clock, f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b"SECRET" not in answer.body
            assert answer.status in {401, 404} or target == "*" or (method == "OPTIONS" and target.startswith("/post"))
            assert "last-modified" not in answer.headers

    def test_authentication_that_waits_for_the_store_leads_to_the_same_file(self, files: InMemoryApi) -> None:
        """Digest waits for the store; the remaining path segments are traversed after it."""
        for path in ("a.txt", "", "below/b.txt"):
            answer = ask(files, "GET", f"/files/{path}", headers=basic())
            assert (answer.status, answer.body) == (200, b"TOP SECRET")
            again = ask(files, "GET", f"/deep/files/{path}", headers=proof(files, f"/deep/files/{path}"))
            assert (again.status, again.body) == (200, b"TOP SECRET")
            assert again.header("Authentication-Info")
            assert answer.header("Cache-Control") == again.header("Cache-Control") == "private, no-store"
        for path in ("none", "below/none", "below"):
            status = 302 if path == "below" else 404
            assert ask(files, "GET", f"/files/{path}", headers=basic()).status == status
            headers = proof(files, f"/deep/files/{path}")
            assert ask(files, "GET", f"/deep/files/{path}", headers=headers).status == status


class StoreFailureTests:
    """No 401, at which a client would discard its credentials (reference: Schemes, G11)."""

    def test_credentials_are_503_while_the_store_is_unavailable(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic", "digest", "session"]\nwrite = ["basic", "digest", "session"]\n' + ALL)
        check_authenticated(ask(api, "GET", "/basic", headers=basic()))  # the password is cached now
        cookie, digest = log_in(api), proof(api, "/all")
        read = proof(api, "/post")
        result_of(api.store.stop())
        for headers, path in (
            *((basic(), "/basic"), (basic(), "/all"), (basic(), "/post"), (basic(password="wrong"), "/basic")),
            *((basic("unknown"), "/basic"), (basic("bob"), "/basic"), (basic(), "/basic/below")),
            *((cookie, "/all"), (cookie, "/session"), (cookie, "/home"), (cookie, "/post")),
            *((digest, "/all"), (read, "/post")),
        ):
            for method in ("GET", "HEAD", "POST"):
                answer = ask(api, method, path, headers={**headers, "Sec-Fetch-Site": "same-origin"})
                if b"Digest" in str(headers).encode() and method != "GET":
                    continue  # a Digest response is for one method
                check_without_challenge(answer, 503)
                assert int(answer.header("Retry-After") or 0) >= 1
                assert "set-cookie" not in answer.headers
                assert answer.header("Cache-Control") == "no-store"

    def test_missing_credentials_are_401_or_503_while_the_store_is_unavailable(
        self, make: Callable[..., InMemoryApi]
    ) -> None:
        api = make(ALL)
        result_of(api.store.stop())
        check_challenged(ask(api, "GET", "/basic"))
        check_without_challenge(ask(api, "GET", "/digest"), 503)  # no nonce can be made
        check_without_challenge(ask(api, "GET", "/all"), 503)

    def test_malformed_credentials_are_401_while_the_store_is_unavailable(self, api: InMemoryApi) -> None:
        result_of(api.store.stop())
        check_challenged(ask(api, "GET", "/basic", headers=field("Basic x")))


class LogTests:
    """User, scheme, reason and address of a refusal; no secret (reference: Schemes, G16)."""

    PEERS = [  # noqa: RUF012 - a constant
        (IPv4Address("TCP", "198.51.100.7", 1), "198.51.100.7"),
        (IPv6Address("TCP", "2001:db8::7", 1), "2001:db8::7"),
        (UNIXAddress(None), "unix"),
    ]

    @pytest.mark.parametrize(("peer", "address"), PEERS)
    def test_refused_login_is_logged_with_its_reason(self, api: InMemoryApi, peer: IAddress, address: str) -> None:
        for headers, scheme, user, why in (
            (basic(password="wr0ng"), "basic", "'alice'", "wrong password"),
            (basic("unknown"), "basic", "an unknown user of 7 bytes", "no such user"),
            (field("Basic wr0ng"), "basic", None, "Base64"),
            (field("BASIC YWxpY2U="), "basic", None, "no colon"),
            (field("Digest wr0ng"), "digest", None, "malformed"),
        ):
            ((name, value),) = headers.items()
            request = f"GET /all HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n".encode()
            with recorded_log(api) as events:
                assert ask_raw(api.site, api.clock, request, peer).status == 401
            refusals = [event for event in events if "login refused" in event["log_format"]]
            assert [(event["scheme"], event["user"], event["address"]) for event in refusals] == [
                (scheme, user or "-", address)
            ]
            assert why in refusals[0]["why"]
            check_secret(events, value, "wr0ng", PASSWORD)

    def test_no_log_event_contains_a_secret(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic", "session"]\nwrite = ["digest", "session"]\n' + ALL)
        secrets: list[str | bytes] = [PASSWORD, "wr0ng-password"]
        with recorded_log(api) as events:
            cookie = log_in(api)
            old = log_in(api)
            ask(api, "POST", "/logout", headers=old)
            sent: list[dict[str, Any]] = [
                basic(),
                basic("unknown"),
                basic(password="wr0ng-password"),
                proof(api, "/all"),
                proof(api, "/all", password="wr0ng-password"),
                proof(api, "/digest"),
                cookie,
                old,
                {**cookie, **basic(password="wr0ng-password")},
                {"Cookie": "session=planted-id-of-somebody; session=" + "A" * 43},
                field("Bearer t0ken.of.somebody"),
                field("t0ken-without-a-scheme"),
                {**cookie, "Authorization": "t0ken-without-a-scheme"},
                {**old, "Authorization": "t0ken-without-a-scheme"},
                {"Cookie": "session=x", "Authorization": "t0ken-without-a-scheme"},
                {**old, "Authorization": "Bearer t0ken.of.somebody"},
                {"Authorization": ["Basic t0ken-one", "Basic t0ken-two"]},
                field("Basic t0ken-" + "x" * 9000),
            ]
            for headers in sent:
                for path in ("/all", "/basic", "/session", "/post", "/home", "/digest", "/"):
                    ask(api, "GET", path, headers=headers)
                ask(api, "POST", "/post", BODY, {**JSON, **headers})
            for password in (PASSWORD, "wr0ng-password"):
                form = urlencode({"username": "alice", "password": password}).encode()
                ask(api, "POST", "/login", form, {"Content-Type": "application/x-www-form-urlencoded"})
                ask(api, "POST", "/login", form, JSON)
            result_of(api.store.stop())
            for headers in sent:
                ask(api, "GET", "/all", headers=headers)
        for headers in sent:
            for value in headers.values():
                for one in value if isinstance(value, list) else [value]:
                    text = one.decode() if isinstance(one, bytes) else one
                    secrets += [text, text.partition("=")[2], text.partition(" ")[2] or text]
        secrets = [secret for secret in secrets if len(secret) > 8]
        assert len(secrets) > 30
        check_secret(events, *secrets, "t0ken", "planted-id")
        assert len(events) > 10
        assert not [event for event in events if event["log_level"] >= LogLevel.error and "store" not in str(event)]

    def test_user_name_cannot_inject_a_log_line(self, api: InMemoryApi) -> None:
        nonce = challenges_in(ask(api, "GET", "/digest"))[0].nonce
        parameters = Proof(nonce=nonce).parameters(
            **{"username": None, "username*": "UTF-8''x%0A%1B%5Blogin%20accepted"}
        )
        value = "Digest " + ", ".join(f"{name}={value}" for name, value in parameters.items())
        with recorded_log(api) as events:
            assert ask(api, "GET", "/digest", headers=field(value)).status == 401
        lines = [formatEvent(event) for event in events if "login refused" in event["log_format"]]
        assert len(lines) == 1
        assert "\n" not in lines[0]
        assert "\x1b" not in lines[0]

    def test_unknown_name_is_logged_as_its_length(self, api: InMemoryApi) -> None:
        """It may be a token that a program sends with Basic, or a password typed into the wrong field."""
        token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"
        with recorded_log(api) as events:
            assert ask(api, "GET", "/basic", headers=basic(token, "x")).status == 401
        (line,) = [formatEvent(event) for event in events if "login refused" in event["log_format"]]
        assert line == "login refused: basic an unknown user of 41 bytes from 127.0.0.1: no such user"
        check_secret(events, token)

    def test_access_log_has_the_scheme_of_the_credentials(self, api: InMemoryApi) -> None:
        """Of credentials that the rule accepts, valid or not."""
        cookie = log_in(api)
        for headers, path, scheme in (
            *((basic(), "/all", "basic"), (basic(password="wrong"), "/all", "basic"), (basic(), "/digest", "-")),
            *((proof(api, "/all"), "/all", "digest"), (field("Digest x"), "/all", "digest")),
            *((cookie, "/all", "session"), (cookie, "/basic", "-"), ({"Cookie": "session=x"}, "/all", "session")),
            *((field("Foo x"), "/all", "-"), ({}, "/all", "-"), ({**cookie, **basic()}, "/all", "basic")),
        ):
            with recorded_log(api) as events:
                ask(api, "GET", path, headers=headers)
            (line,) = [event["lines"] for event in events if event["log_namespace"] == "postd.access"]
            assert f" scheme={scheme} " in line

    def test_accepted_login_is_not_logged_as_refused(self, api: InMemoryApi) -> None:
        with recorded_log(api) as events:
            for headers in (basic(), log_in(api), proof(api, "/all")):
                check_authenticated(ask(api, "GET", "/all", headers=headers))
        assert not [event for event in events if "refused" in event["log_format"]]


@contextmanager
def no_cycles_left(kind: type) -> Iterator[None]:
    """Check that no new object of a class is left for the garbage collector."""
    gc.collect()
    before = [found for found in gc.get_objects() if isinstance(found, kind)]  # of other tests
    gc.disable()
    try:
        yield
        known = {id(found) for found in before}
        assert not [found for found in gc.get_objects() if isinstance(found, kind) and id(found) not in known]
    finally:
        gc.enable()


class ReferenceCycleTests:
    @pytest.mark.parametrize(
        "headers",
        [{}, field("Basic !"), field("Bearer x"), basic(password="wrong")],
        ids=["no credentials", "malformed", "another scheme", "a wrong password"],
    )
    def test_refused_request_leaves_no_cycle(self, api: InMemoryApi, headers: Any) -> None:
        ask(api, "GET", "/all", headers=headers)
        with no_cycles_left(HttpRequest):
            for _ in range(3):
                assert ask(api, "GET", "/all", headers=headers).status == 401


class TreeTests:
    def test_guarded_resource_may_have_children(self, api: InMemoryApi) -> None:
        """With Basic, which authenticates at once here, and with Digest, which waits for the store."""
        tree = Resource()
        tree.putChild(b"child", Data(b"the child", "text/plain"))
        root = Resource()
        root.putChild(b"tree", api.protect(tree, "digest", "basic"))
        server = Worker(make_site(root, clock=api.clock), api.clock)
        for headers in (basic(), proof(api, "/digest", uri="/tree/child")):
            answer = ask(server, "GET", "/tree/child", headers=headers)
            assert (answer.status, answer.body) == (200, b"the child")
        assert ask(server, "GET", "/tree/child").status == 401


@implementer(ICredentialsChecker)
class DeferredChecker:
    """A checker of `twisted.cred`; for the password "later" its Deferred fires when a test says so."""

    credentialInterfaces = (IPasswordCredentials,)

    def __init__(self) -> None:
        self.asked: Deferred[bytes] | None = None

    def requestAvatarId(self, credentials: PasswordCredentials) -> Any:
        if credentials.password == "later":
            self.asked = Deferred()
            return self.asked
        if credentials.password != PASSWORD:
            return fail(Refused("wrong"))
        return credentials.username.encode()


class PortalTests:
    @pytest.fixture
    def checker(self) -> DeferredChecker:
        return DeferredChecker()

    @pytest.fixture
    def worker(self, checker: DeferredChecker) -> Worker:
        factories: list[CredentialFactory] = [
            BasicCredentialFactory("postd", PeerResolver()),
            BearerCredentialFactory(AcceptedTokens("postd", (), MountedResources()), ProtectedResource(PeerResolver())),
        ]
        guard = Guard(CoroutinePortal(Realm(), [checker]), factories, ViewResource(show_name))
        root, clock = Resource(), Clock()
        root.putChild(b"here", guard)
        return Worker(make_site(root, clock=clock), clock)

    def test_guard_asks_any_checker_of_its_portal(self, worker: Worker) -> None:
        check_authenticated(ask(worker, "GET", "/here", headers=basic()))
        assert ask(worker, "GET", "/here", headers=basic(password="wrong")).status == 401

    @pytest.mark.parametrize(
        ("result", "status"),
        [(b"alice", 200), (Failure(Refused("no")), 401), (Failure(StoreUnavailableError("x")), 503)],
    )
    def test_checker_may_return_a_pending_deferred(
        self, worker: Worker, checker: DeferredChecker, result: Any, status: int
    ) -> None:
        asking = begin(worker, "GET", "/here", headers=basic(password="later"))
        assert checker.asked is not None
        checker.asked.callback(result)
        assert asking.response().status == status

    def test_unauthorized_login_of_a_foreign_checker_is_401(self, worker: Worker, checker: DeferredChecker) -> None:
        """`UnauthorizedLogin` is what stock checkers raise; ours raise `Refused`, a subclass."""
        asking = begin(worker, "GET", "/here", headers=basic(password="later"))
        assert checker.asked is not None
        checker.asked.errback(UnauthorizedLogin())
        check_challenged(asking.response(), BASIC, 'Bearer realm="postd"')

    def test_disconnected_request_is_logged_with_its_scheme(self, worker: Worker) -> None:
        with capturedLogs() as events:
            begin(worker, "GET", "/here", headers=basic(password="later")).disconnect()
            worker.clock.advance(1)
        assert [event for event in events if "499" in formatEvent(event) and "scheme=basic" in formatEvent(event)]

    def test_failed_challenge_is_logged_without_a_scheme(self, checker: DeferredChecker) -> None:
        class Failing(BasicCredentialFactory):
            async def challenges(self, _refusal: Refused | None, _request: Any) -> list[bytes]:
                raise StoreUnavailableError("x")

        guard = Guard(CoroutinePortal(Realm(), [checker]), [Failing("postd", PeerResolver())], ViewResource(show_name))
        clock = Clock()
        worker = Worker(make_site(guard, clock=clock), clock)
        with capturedLogs() as events:
            assert ask(worker, "GET", "/").status == 503
            clock.advance(1)
        assert [event for event in events if "scheme=- " in formatEvent(event)]

    def test_disconnect_cancels_the_view_but_not_the_login_before_it(self, checker: DeferredChecker) -> None:
        """The login continues, so that a failure is counted; the view of a client that has gone is not run."""
        waiting, cancelled = list[Deferred[Any]](), list[Deferred[Any]]()

        async def wait(_request: Any) -> Any:
            waiting.append(Deferred(cancelled.append))
            return await waiting[-1]

        guard = Guard(
            CoroutinePortal(Realm(), [checker]), [BasicCredentialFactory("postd", PeerResolver())], ViewResource(wait)
        )
        clock = Clock()
        worker = Worker(make_site(guard, clock=clock), clock)
        asking = begin(worker, "GET", "/", headers=basic(password="later"))
        asking.disconnect()
        assert checker.asked is not None
        assert not checker.asked.called
        checker.asked.callback(b"alice")
        assert waiting == []
        asking = begin(worker, "GET", "/", headers=basic(password="later"))
        checker.asked.callback(b"alice")
        assert (len(waiting), cancelled) == (1, [])
        asking.disconnect()
        assert cancelled == waiting

    def test_delayed_refusal_leaves_no_cycle(self, worker: Worker, checker: DeferredChecker) -> None:
        with no_cycles_left(PasswordCredentials):
            asking = begin(worker, "GET", "/here", headers=basic(password="later"))
            assert checker.asked is not None
            checker.asked.errback(Refused("no"))
            assert asking.response().status == 401

    def test_credentials_without_a_checker_are_500_and_logged(self, worker: Worker) -> None:
        with capturedLogs() as events:
            assert ask(worker, "GET", "/here", headers=field("Bearer x")).status == 500
        assert [event for event in events if "log_failure" in event]


class InterfaceTests:
    @pytest.fixture
    def api(self, make: Callable[[str], InMemoryApi]) -> InMemoryApi:
        """One with all kinds of credentials."""
        return make('[api]\nread = ["bearer"]\n')

    def test_twisted_interfaces_are_provided(self, api: InMemoryApi) -> None:
        access = api.logins
        guard = access.protect(
            error_page(Problem(404, "x")), ["digest", "bearer", "basic"], ProtectedResource(access.context.clients)
        )
        assert verifyObject(IResource, guard)
        assert verifyObject(IRealm, Realm())
        assert verifyObject(IRealm, access.portal.realm)
        checkers = set(access.portal.checkers.values())
        assert len(checkers) == 5
        for checker in checkers:
            assert verifyObject(ICredentialsChecker, checker)

    def test_each_credentials_class_provides_one_interface_with_a_checker(self, api: InMemoryApi) -> None:
        response = DigestResponse("alice", "postd", "N", "/", "0", "MD5", "C", "00000001")
        kinds: list[tuple[Any, Any]] = [
            (IPasswordCredentials, PasswordCredentials("basic", "alice", PASSWORD, "192.0.2.1")),
            (IDigestCredentials, DigestCredentials(response, "GET", "192.0.2.1", lambda _: None)),
            (ISessionCredentials, SessionCredentials((b"x",))),
            (IBearerCredentials, BearerCredentials("a.token.b", writes=False, address="192.0.2.1")),
        ]
        for interface, credentials in kinds:
            assert verifyObject(interface, credentials)
            assert verifyObject(ICredentials, credentials)
            assert list(providedBy(credentials)) == [interface]
            assert interface in api.logins.portal.listCredentialsInterfaces()

    def test_repr_of_credentials_has_no_secret(self) -> None:
        assert PASSWORD not in repr(PasswordCredentials("basic", "alice", PASSWORD, "192.0.2.1"))
        assert "a.token.b" not in repr(BearerCredentials("a.token.b", writes=False, address="192.0.2.1"))

    def test_guard_provides_iresource(self) -> None:
        assert verifyObject(IResource, Guard(CoroutinePortal(Realm()), [], Resource()))
