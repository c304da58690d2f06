"""Personal access tokens over HTTP: challenges, refusals, Basic, the throttle, scopes, and where they are no tokens."""

import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from postd.auth.credentials import TokenCredentials
from postd.auth.personal_token import USED_INTERVAL_S, make_personal_token
from postd.errors import StoreUnavailableError
from postd.protocol.personal_token import PREFIX, Access, PersonalToken, hash_token, make_token
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, result_of
from tests.protect.program import MakeProgram
from tests.protect.test_bearer import ISSUERS
from tests.web.clients import account, basic, check_secret, recorded_log
from tests.web.test_events import Subscriber
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import ask

RULES = """
[api]
read = ["token", "basic"]
write = ["token", "basic"]
[[page]]
path = "/token"
schemes = ["token"]
[[page]]
path = "/alice"
schemes = ["token"]
users = ["alice"]
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/all"
schemes = ["digest", "bearer", "token", "basic"]
[[page]]
path = "/bearer"
schemes = ["bearer"]
"""
PROVIDER = "https://sign-in.example"
PROVIDERS = f"""
[[sign_in]]
id = "example"
name = "Example"
issuer = "{PROVIDER}"
client_id = "posts"
"""
CHALLENGE = 'Bearer realm="postd"'
INVALID = f'{CHALLENGE}, error="invalid_token", error_description="The access token is invalid"'
EXPIRED = f'{CHALLENGE}, error="invalid_token", error_description="The access token expired"'
VERIFY = "postd.auth.password.verify_password"


def add(
    api: InMemoryApi,
    name: str = "alice",
    access: Access = "write",
    *,
    entry: bytes | None = None,
    lifetime_s: float = math.inf,
) -> str:
    """Store a token of an account; return its text."""
    if entry is None:
        entry = api.logins.context.accounts.entry(name)
        assert entry is not None
    now = api.clock.seconds()
    text, token = make_personal_token(name, entry, access=access, label="", now=now, lifetime_s=lifetime_s)
    adding = Deferred.fromCoroutine(api.store.add_token(hash_token(text), token))
    api.clock.advance(0)
    assert result_of(adding)
    return text


def stored(api: InMemoryApi) -> list[PersonalToken]:
    listed: list[PersonalToken] = result_of(api.store.list_tokens())
    return listed


def revoke(api: InMemoryApi, *tokens: PersonalToken) -> None:
    deleting = Deferred.fromCoroutine(api.store.delete_tokens([token.id for token in tokens]))
    api.clock.advance(0)
    assert result_of(deleting) == len(tokens)


def written(events: Sequence[Any]) -> list[str]:
    """Return the lines of the log; an event may have several lines of the access log."""
    return "\n".join(formatEvent(event) for event in events).splitlines()


def bearer(token: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def post(api: InMemoryApi, headers: dict[str, Any], **more: Any) -> Response:
    return ask(api, "POST", "/post", post_body("one"), {**JSON, **headers}, **more)


def challenges(answer: Response) -> list[str]:
    return answer.headers.get("www-authenticate", [])


@pytest.fixture
def api(make: Callable[..., InMemoryApi]) -> InMemoryApi:
    return make(RULES)


class ChallengeTests:
    def test_challenge_is_the_line_of_bearer(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/token")
        assert (answer.status, challenges(answer)) == (401, [CHALLENGE])
        answer = ask(api, "GET", "/token", None, bearer("postd_x"))
        assert (answer.status, challenges(answer)) == (401, [INVALID])

    def test_bearer_and_token_have_one_line(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + ISSUERS)
        for headers, error in (({}, ""), (bearer(make_token()), "invalid_token"), (bearer("x"), "invalid_token")):
            lines = challenges(ask(api, "GET", "/all", None, headers))
            assert [line.partition(" ")[0] for line in lines] == ["Digest", "Bearer", "Basic"]
            assert ("resource_metadata=" in lines[1], error in lines[1]) == (True, True)
            assert ("error=" in lines[1]) == bool(error)

    def test_line_comes_before_that_of_dpop(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + ISSUERS + 'dpop = "require"\n')
        lines = challenges(ask(api, "GET", "/all"))
        assert [line.partition(" ")[0] for line in lines] == ["Digest", "Bearer", "DPoP", "Basic"]
        assert lines[1] == CHALLENGE
        assert ask(api, "GET", "/all", None, bearer(add(api))).status == 200

    def test_other_scheme_names_count_as_none(self, api: InMemoryApi) -> None:
        """`token` is the name that clients of Gitea and GitHub send, too."""
        token = add(api)
        for value in (f"token {token}", f"DPoP {token}", token, f"Basic {token}"):
            answer = ask(api, "GET", "/token", None, {"Authorization": value})
            assert (answer.status, challenges(answer)) == (401, [CHALLENGE])
        for headers in ({"Private-Token": token}, {"Cookie": f"session={token}"}):
            assert ask(api, "GET", f"/token?access_token={token}", None, headers).status == 401

    def test_two_fields_are_400(self, api: InMemoryApi) -> None:
        value = bearer(add(api))["Authorization"]
        assert ask(api, "GET", "/token", None, {"Authorization": [value, value]}).status == 400


class AccessTests:
    def test_token_is_its_account(self, api: InMemoryApi) -> None:
        token = add(api)
        assert ask(api, "GET", "/token", None, bearer(token)).body == b"Success: alice\n"
        with recorded_log(api) as events:
            assert post(api, bearer(token)).status == 201
            assert post(api, {"Authorization": f"bEARER  {token} "}).status == 201
        lines = [line for line in written(events) if "scheme=" in line]
        assert [" alice " in line and "scheme=token" in line for line in lines] == [True] * 3
        check_secret(events, token, token[6:])
        assert b'"author": "alice"' in ask(api, "GET", "/post?include=meta", None, bearer(token)).body

    @each("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
    def test_read_token_only_reads(self, make: Callable[..., InMemoryApi], method: str) -> None:
        api = make(RULES)
        token = add(api, access="read")
        api.add("one")
        for headers in (bearer(token), basic("alice", token)):
            path = "/post/1" if method in {"PUT", "DELETE"} else "/post"
            answer = ask(api, method, path, post_body("two"), {**JSON, **headers})
            if method in {"GET", "HEAD"}:
                assert answer.status == 200
                continue
            check_problem(answer, 403)
            assert challenges(answer) == [f'{CHALLENGE}, error="insufficient_scope", scope="write"']

    def test_users_of_a_page_are_those_of_tokens(self, api: InMemoryApi) -> None:
        assert ask(api, "GET", "/alice", None, bearer(add(api))).status == 200
        answer = ask(api, "GET", "/alice", None, bearer(add(api, "bob")))
        assert (answer.status, challenges(answer)) == (403, [])

    def test_scope_of_a_page_is_needed(self, make: Callable[..., InMemoryApi]) -> None:
        page = '[[page]]\npath = "/{0}"\nschemes = ["token"]\nread_scope = "{0}"\n'
        api = make(page.format("write") + page.format("read") + page.format("other"))
        reading, writing = (bearer(add(api, access=access)) for access in ("read", "write"))
        asked = [(path, headers) for path in ("/read", "/write", "/other") for headers in (reading, writing)]
        assert [ask(api, "GET", path, None, headers).status for path, headers in asked] == [
            200,
            200,
            403,
            200,
            403,
            403,
        ]
        assert challenges(ask(api, "GET", "/other", None, writing)) == [
            f'{CHALLENGE}, error="insufficient_scope", scope="other"'
        ]

    def test_user_of_a_provider_has_tokens(self, make: Callable[..., InMemoryApi]) -> None:
        rule = f'[[page]]\npath = "/carol"\nschemes = ["token"]\nusers = ["{PROVIDER}#cärol"]\n'
        api = make(RULES + rule + PROVIDERS)
        entry = api.logins.context.providers["example"].fingerprint
        token = add(api, f"{PROVIDER}#cärol", entry=entry)
        assert ask(api, "GET", "/carol", None, bearer(token)).body.decode() == "Success: cärol\n"
        # Basic ends the user name at its first colon.
        assert post(api, basic(f"{PROVIDER}#cärol", token)).status == 201
        assert post(api, basic(f"{PROVIDER}#c", token)).status == 401
        others = add(api, "https://other.example#cärol", entry=entry), add(api, "cärol", entry=entry)
        assert [ask(api, "GET", "/token", None, bearer(other)).status for other in others] == [401, 401]

    def test_open_rule_checks_what_is_sent(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["open"]\nwrite = ["open"]\n[[page]]\npath = "/token"\nschemes = ["token"]\n')
        token = add(api)
        assert post(api, bearer(token)).status == 201
        assert b'"author": "alice"' in ask(api, "GET", "/post/1?include=meta").body
        revoke(api, *stored(api))
        check_problem(post(api, bearer(token)), 401)

    def test_gateway_sends_the_scopes(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('trusted_proxies = ["192.0.2.1"]\n[[page]]\npath = "/gate"\nschemes = ["token"]\nforward = true\n')
        described = {"X-Forwarded-Uri": "/a", "X-Forwarded-Host": "app.example", "X-Forwarded-For": "192.0.2.2"}
        expected: list[tuple[Access, str]] = [("read", "read"), ("write", "read write")]
        for access, scopes in expected:
            headers = {**described, "X-Forwarded-Method": "GET", **bearer(add(api, access=access))}
            answer = ask(api, "GET", "/gate", None, headers, peer="192.0.2.1")
            shown = [answer.header(f"Remote-{name}") for name in ("User", "Scheme", "Scopes")]
            assert (answer.status, shown) == (200, ["alice", "token", scopes])
        writing = {**described, "X-Forwarded-Method": "POST", **bearer(add(api, access="read"))}
        assert ask(api, "GET", "/gate", None, writing, peer="192.0.2.1").status == 403

    def test_board_has_a_form_for_write_tokens_alone(self, api: InMemoryApi) -> None:
        for access in ("read", "write"):
            answer = ask(api, "GET", "/board", None, {"Accept": "text/html", **bearer(add(api, access=access))})
            assert (answer.status, b"<textarea" in answer.body) == (200, access == "write")

    def test_other_sites_may_send_bearer_but_not_basic(self, api: InMemoryApi) -> None:
        token, cross_site = add(api), {"Origin": "https://other.example", "Sec-Fetch-Site": "cross-site"}
        assert post(api, {**bearer(token), **cross_site}).status == 201
        assert post(api, {**basic("alice", token), **cross_site}).status == 403

    def test_revoked_token_ends_the_stream(self, api: InMemoryApi) -> None:
        listener = Subscriber(api, **bearer(add(api, access="read")))
        listener.wait()
        with patch.object(api.store, "get_token", side_effect=AssertionError):  # the cache has it
            api.add("one")
            assert len(listener.wait()) == 1
        revoke(api, *stored(api))
        api.add("two")
        assert listener.wait() == []
        assert not listener.transport.connected


class RefusalTests:
    def test_malformed_token_is_neither_looked_up_nor_counted(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + "[throttle]\naddress_failures = 1\n")
        token = add(api)
        last = "0" if token[-1] != "0" else "1"
        wrong = [
            *(token[:-1] + last, token[:-1], token + "0", token.upper(), token.lower(), token[6:]),
            *(f'"{token}"', f"{token}=", f"{token}\xe4", f"{token},{token}", f"{token} {token}"),
            *(PREFIX, PREFIX + "0" * 46, "x", "eyJ.e30.x", ""),
        ]
        with patch.object(api.store, "get_token", side_effect=AssertionError), recorded_log(api) as events:
            for value in wrong:
                answer = ask(api, "GET", "/token", None, {"Authorization": f"Bearer {value}".encode("latin-1")})
                assert (answer.status, challenges(answer)) == (401, [INVALID]), value
        check_secret(events, token[6:])
        assert ask(api, "GET", "/token", None, bearer(token)).status == 200

    def test_wrong_tokens_are_throttled_by_address(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + "[throttle]\naddress_failures = 3\n")
        token = add(api)
        for _ in range(3):
            assert ask(api, "GET", "/token", None, bearer(make_token())).status == 401
        for headers in (bearer(make_token()), bearer(token), basic("alice", token)):
            answer = post(api, headers)
            check_problem(answer, 429)
            assert answer.header("Retry-After")
        assert ask(api, "GET", "/token", None, bearer(token), peer="192.0.2.9").status == 200

    def test_missing_scope_is_no_failure(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + "[throttle]\naddress_failures = 1\n")
        token = add(api, access="read")
        assert [post(api, bearer(token)).status for _ in range(3)] == [403] * 3

    def test_expired_token_is_named_so(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES + "[throttle]\naddress_failures = 2\n")
        token = add(api, lifetime_s=60)
        api.clock.advance(59)
        assert ask(api, "GET", "/token", None, bearer(token)).status == 200
        api.clock.advance(1)
        with capturedLogs() as events:
            answers = [ask(api, "GET", "/token", None, bearer(token)) for _ in range(3)]
        assert [(answer.status, challenges(answer)) for answer in answers] == [(401, [EXPIRED])] * 2 + [(429, [])]
        (kept,) = stored(api)
        assert f"token 'alice' from 127.0.0.1: token {kept.id}: it has expired" in formatEvent(events[0])

    def test_unusable_tokens_have_equal_answers(self, api: InMemoryApi) -> None:
        """No answer says which tokens there are, or were, or of whom."""
        removed, other, alice = add(api, "gone", entry=b"x" * 16), add(api, "alice", entry=b"x" * 16), add(api)
        revoked = add(api)
        revoke(api, result_of(api.store.get_token(hash_token(revoked))))
        unusable = [bearer(token) for token in (make_token(), revoked, removed, other, alice[:-1] + "_")]
        answers = [ask(api, "GET", "/token", None, headers) for headers in unusable]
        forget_own(*answers)
        assert all(answer == answers[0] for answer in answers)
        named = [("alice", make_token()), ("alice", revoked), ("bob", alice), ("nobody", alice), ("gone", removed)]
        answers = [post(api, basic(*pair)) for pair in named]
        forget_own(*answers)
        assert all(answer == answers[0] for answer in answers)
        assert [line.partition(" ")[0] for line in challenges(answers[0])] == ["Bearer", "Basic"]
        assert "error" not in "".join(challenges(answers[0]))

    def test_account_that_is_added_again_has_no_tokens(self, api: InMemoryApi) -> None:
        assert api.users is not None
        token, other = add(api), add(api, "bob")
        api.users.write_text(account("bob"))
        api.clock.advance(2)
        assert ask(api, "GET", "/token", None, bearer(token)).status == 401
        api.users.write_text(f"alice:{account('alice').split(':')[1][:-4]}abcd\n" + account("bob"))
        api.clock.advance(2)
        assert ask(api, "GET", "/token", None, bearer(token)).status == 401
        assert ask(api, "GET", "/token", None, bearer(other)).status == 200

    def test_provider_that_is_removed_has_no_users(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES)
        token = add(api, f"{PROVIDER}#carol", entry=b"x" * 32)
        assert ask(api, "GET", "/token", None, bearer(token)).status == 401

    @each("path", ["/token", "/all"])
    def test_store_that_is_away_is_503(self, make: Callable[..., InMemoryApi], path: str) -> None:
        api = make(RULES)
        headers = bearer(add(api))
        with patch.object(api.store, "get_token", side_effect=StoreUnavailableError("away")):
            assert ask(api, "GET", path, None, headers).status == 503
        assert ask(api, "GET", path, None, headers).status == 200

    def test_token_is_never_introspected(self, make: Callable[..., InMemoryApi]) -> None:
        """Where only access tokens are accepted, and by the name `DPoP`, too."""
        endpoint = 'introspection_endpoint = "https://idp.example/introspect"\ndpop = "accept"\n'
        api = make(RULES + ISSUERS + endpoint)
        token = add(api)
        proof = {"Dpop": "eyJ9.e30.x"}
        with patch("postd.auth.introspection.Introspector.introspect", side_effect=AssertionError):
            for path, headers in (
                ("/bearer", bearer(token)),
                ("/bearer", bearer(token[:-1])),
                ("/all", {"Authorization": f"DPoP {token}", **proof}),
                ("/all", bearer(token[:-1])),
            ):
                assert ask(api, "GET", path, None, headers).status == 401

    def test_bound_on_failures_holds_for_concurrent_attempts(self, make: Callable[..., InMemoryApi]) -> None:
        """All look-ups are under way before the first one ends."""
        api = make(RULES + "[throttle]\naddress_failures = 3\n")
        waiting: list[Deferred[None]] = []

        async def look_up(_: bytes) -> None:
            waiting.append(Deferred())
            await waiting[-1]

        results: list[str] = []

        def note_error(failure: Failure) -> None:
            results.append(type(failure.value).__name__)

        with patch.object(api.store, "get_token", look_up):
            for _ in range(10):
                credentials = TokenCredentials(make_token(), writes=False, address="192.0.2.1")
                checking: Deferred[Any] = Deferred.fromCoroutine(api.logins.portal.authenticate(credentials))
                checking.addErrback(note_error)
            assert len(waiting) == 10
            for one in waiting:
                one.callback(None)
            for _ in range(10):
                api.clock.advance(1)
        assert sorted(results) == ["InvalidTokenError"] * 3 + ["TooManyFailuresError"] * 7


class PasswordTests:
    def test_token_is_the_password_of_its_account(self, make: Callable[..., InMemoryApi]) -> None:
        api = make(RULES, users=account("zoë"))
        token = add(api, "zoë")
        with patch(VERIFY, side_effect=AssertionError), recorded_log(api) as events:
            for name in ("zoë", "zoe\u0308"):
                assert post(api, basic(name, token)).status == 201
            for name in ("zoe", "Zoë", "", "x-oauth-basic", "zoë:", token, "x" * 300, "zoë\u0308"):
                answer = post(api, basic(name, token))
                check_problem(answer, 401)
        assert sum("scheme=token" in line for line in written(events)) == 10
        check_secret(events, token[6:])

    def test_password_stays_a_password(self, api: InMemoryApi) -> None:
        assert post(api, basic()).status == 201
        answer = ask(api, "GET", "/all", None, basic())
        assert answer.status == 200
        with recorded_log(api) as events:
            assert post(api, basic(password=make_token()[:-1])).status == 401
        assert any("login refused: basic 'alice'" in formatEvent(event) for event in events)

    def test_without_both_schemes_a_token_is_no_password(self, api: InMemoryApi) -> None:
        token = add(api)
        with recorded_log(api) as events:
            assert ask(api, "GET", "/basic", None, basic("alice", token)).status == 401
            assert ask(api, "GET", "/token", None, basic("alice", token)).status == 401
        check_secret(events, token)


class UseTests:
    def test_time_of_use_is_stored_once_an_hour(self, api: InMemoryApi) -> None:
        headers = bearer(add(api))
        api.clock.advance(10)
        first = api.clock.seconds()
        assert ask(api, "GET", "/token", None, headers).status == 200
        api.clock.advance(USED_INTERVAL_S - 1)
        with patch.object(api.store, "use_token", side_effect=AssertionError):
            assert ask(api, "GET", "/token", None, headers).status == 200
        assert [token.used for token in stored(api)] == [first]
        api.clock.advance(1)
        assert ask(api, "GET", "/token", None, headers).status == 200
        api.clock.advance(0)
        assert [token.used for token in stored(api)] == [first + USED_INTERVAL_S]

    def test_request_does_not_wait_for_it(self, api: InMemoryApi) -> None:
        headers, noting = bearer(add(api)), Deferred[None]()

        async def note(*_: object, **__: object) -> None:
            await noting

        with patch.object(api.store, "use_token", side_effect=note) as noted:
            assert [ask(api, "GET", "/token", None, headers).status for _ in range(3)] == [200] * 3
            assert noted.call_count == 1
            noting.errback(StoreUnavailableError("disk full"))
            assert ask(api, "GET", "/token", None, headers).status == 200


class LibraryTests:
    def test_program_makes_tokens(self, make_program: MakeProgram) -> None:
        program = make_program()
        program.mount("token", "token")
        token = result_of(program.protection.add_token("alice", access="write", label="CI"))
        assert program.get("/token", bearer(token)).body == b"alice token  "
        assert program.get("/token", bearer(token), "POST").body == b"alice token  "
        (client, _) = program.name.clients
        assert client is not None
        assert ({*client.scopes}, client.issuer, client.is_token) == ({"read", "write"}, "", True)
        assert challenges(program.get("/token")) == [CHALLENGE]
        reading = result_of(program.protection.add_token("alice"))
        assert program.get("/token", bearer(reading), "POST").status == 403

    @each(
        "arguments, where",
        [
            ({"account": "carol"}, "account"),
            ({"account": ""}, "account"),
            ({"account": 5}, "account"),
            ({"account": f"{PROVIDER}#carol"}, "account"),
            ({"access": "admin"}, "access"),
            ({"label": "a\nb"}, "label"),
            ({"label": "x" * 101}, "label"),
            ({"lifetime_s": 0}, "lifetime_s"),
            ({"lifetime_s": 91 * 86400}, "lifetime_s"),
        ],
    )
    def test_error_of_an_argument_names_it(
        self, make_program: MakeProgram, arguments: dict[str, Any], where: str
    ) -> None:
        program = make_program()
        with pytest.raises(ValueError, match=rf"\A{where}: "):
            result_of(program.protection.add_token(**{"account": "alice", **arguments}))
