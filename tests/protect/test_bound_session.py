"""Sessions bound to a device: a stolen cookie is worthless, and no browser is signed out by accident.

`tests/system/test_bound_session.py` has a real Chromium.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from twisted.logger import capturedLogs, formatEvent

from postd.errors import StoreUnavailableError
from postd.http.interface import Request
from postd.http.urlencoded import decode_query
from postd.protect.account.base import Visitor
from postd.protect.account.sessions import SessionTask
from postd.protocol.session import hash_session_id
from postd.reactor import ServiceClock
from tests.cases import each
from tests.device import NAVIGATION, PROOF, Device, make_proof
from tests.helpers import InMemoryApi, Response, result_of
from tests.issuer import ABSENT, Key
from tests.protect.program import MakeProgram
from tests.protect.test_login import restart
from tests.web.clients import PASSWORD
from tests.web.test_posts import check_problem
from tests.web.wire import ask, begin

MakeApi = Callable[..., InMemoryApi]

SETTINGS = '[session]\nbind = "offer"\n[api]\nread = ["session"]\nwrite = ["session"]\n[[page]]\npath = "/page"\n'
RULE = 'schemes = ["session"]\n'
RETURN = "__Host-session-return"
BROWSER = {"Accept": NAVIGATION["Accept"], "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
OTHER = Key.make("ES256")
SIGN_IN = urlencode({"username": "alice", "password": PASSWORD}).encode()


@pytest.fixture
def api(make: MakeApi) -> InMemoryApi:
    return make(SETTINGS + RULE)


@pytest.fixture
def device(api: InMemoryApi) -> Device:
    device = Device(api)
    device.bind()
    return device


def check_end(answer: Response, session_id: str) -> None:
    assert (answer.status, answer.header("Content-Type")) == (200, "application/json")
    assert json.loads(answer.body) == {"session_identifier": session_id, "continue": False}
    assert not {"set-cookie", "clear-site-data", "secure-session-challenge"} & answer.headers.keys()


def check_asks(answer: Response, session_id: str = "") -> None:
    assert answer.status == 403
    challenge = answer.header("Secure-Session-Challenge") or ""
    assert challenge.endswith(f';id="{session_id}"' if session_id else '"')
    assert not {"set-cookie", "www-authenticate"} & answer.headers.keys()


class OfferTests:
    def test_sign_in_over_tls_offers_to_bind(self, api: InMemoryApi) -> None:
        device = Device(api)
        answer = device.sign_in()
        assert device.path == "/login/bind"
        assert [*device.cookies] == ["session"]
        cookie = f"session={device.cookies['session']}; Path=/; HttpOnly; SameSite=Lax; Secure"
        assert answer.headers["set-cookie"] == [cookie]

    def test_without_tls_there_is_no_offer(self, api: InMemoryApi) -> None:
        body = SIGN_IN
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        assert "secure-session-registration" not in ask(api, "POST", "/login", body, headers).headers
        forged = {**headers, "X-Forwarded-Proto": "https"}
        assert "secure-session-registration" not in ask(api, "POST", "/login", body, forged).headers
        assert "secure-session-registration" not in ask(api, "POST", "/login", b"x=y", headers, tls=True).headers

    def test_trusted_proxy_with_tls_offers(self, make: MakeApi) -> None:
        api = make(f'trusted_proxies = ["127.0.0.1"]\n{SETTINGS}{RULE}')
        headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-Proto": "https"}
        answer = ask(api, "POST", "/login", SIGN_IN, headers)
        assert answer.header("Secure-Session-Registration")

    def test_session_that_is_not_bound_is_as_before(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        for _ in range(5):
            assert device.gets("/home", BROWSER) == 200
            api.clock.advance(1200)
        assert [*device.cookies] == ["session"]

    def test_default_binds_nothing(self, make: MakeApi) -> None:
        api = make(SETTINGS.replace("offer", "no") + RULE)
        with pytest.raises(AssertionError, match="set-cookie"):
            Device(api).sign_in()
        for path in ("/login/bind", "/login/bind/refresh"):
            assert ask(api, "POST", path, b"", tls=True).status == 404


class RegistrationTests:
    @pytest.mark.parametrize("alg", ["ES256", "RS256"])
    def test_registration_gives_a_proof(self, api: InMemoryApi, alg: str) -> None:
        device = Device(api, Key.make(alg))
        device.sign_in()
        answer = device.register()
        told = json.loads(answer.body)
        assert told["refresh_url"] == "/login/bind/refresh"
        assert told["scope"]["origin"] == "https://localhost"
        (cookie,) = answer.headers["set-cookie"]
        attributes = told["credentials"][0]["attributes"]
        assert cookie == f"{PROOF}={device.cookies[PROOF]}; {attributes}; Max-Age=600"
        assert answer.header("Cache-Control") == "no-store"
        assert answer.header("Secure-Session-Challenge") == f'"{device.challenge}";id="{device.session_id}"'
        assert device.cookies["session"] not in answer.body.decode()
        assert device.gets("/home") == 200
        assert device.refresh().status == 200

    def test_quoted_proof_is_taken(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        assert device.register(f'"{make_proof(device.key, device.challenge, registers=True)}"').status == 200
        assert device.refresh(f'"{make_proof(device.key, device.challenge)}"').status == 200
        assert device.refresh(**{"Sec-Secure-Session-Id": f'"{device.session_id}"'}).status == 200

    def test_registration_is_answered_again_until_the_first_proof(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        sent = make_proof(device.key, device.challenge, registers=True)
        for after_s in (0, 1, 400):  # a browser repeats a request on a connection that is closed
            api.clock.advance(after_s)
            assert device.register(sent).status == 200
        session_id = device.session_id
        assert device.gets("/home") == 200
        check_asks(device.register(sent))
        assert device.gets("/home") == 200
        device.session_id = session_id
        assert device.refresh().status == 200

    def test_one_key_wins(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        challenge = device.challenge
        assert device.register().status == 200
        check_asks(device.register(make_proof(OTHER, challenge, registers=True)))
        check_asks(device.register(make_proof(OTHER, device.challenge, registers=True)))
        assert device.gets("/home") == 200

    @pytest.mark.parametrize(
        ("changes", "after_s"),
        [
            ({"alg": "none"}, 0),
            ({"typ": "JWT"}, 0),
            ({"jwk": ABSENT}, 0),
            ({"jwk": OTHER.jwk()}, 0),
            ({"claim_jti": "x"}, 0),
            ({"claim_jti": ABSENT}, 0),
            ({}, 301),
        ],
    )
    def test_wrong_proof_is_asked_for_again(self, api: InMemoryApi, changes: dict[str, Any], after_s: float) -> None:
        device = Device(api)
        device.sign_in()
        api.clock.advance(after_s)
        check_asks(device.register(make_proof(device.key, device.challenge, registers=True, **changes)))
        assert device.gets("/home") == 200
        assert device.register().status == 200, "the new challenge can be answered"

    def test_request_without_a_proof_is_asked_for_one(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        check_asks(device.ask("POST", "/login/bind", {}, b""))
        check_asks(device.ask("POST", "/login/bind", {"Secure-Session-Response": ["a", "b"]}, b""))

    def test_challenge_of_another_session_is_refused(self, api: InMemoryApi) -> None:
        alice, bob = Device(api), Device(api)
        alice.sign_in()
        bob.sign_in("bob")
        check_asks(alice.register(make_proof(alice.key, bob.challenge, registers=True)))

    def test_lost_answer_ends_no_session(self, api: InMemoryApi) -> None:
        """A browser drops a registration whose answer is lost; the session stays one that is not bound."""
        device = Device(api)
        device.sign_in()
        begin(api, "POST", "/login/bind", b"", self._headers(device), tls=True).disconnect()
        for _ in range(3):
            api.clock.advance(100)
            assert device.gets("/home", BROWSER) == 200

    def _headers(self, device: Device) -> dict[str, str]:
        proof = make_proof(device.key, device.challenge, registers=True)
        return {"Cookie": f"session={device.cookies['session']}", "Secure-Session-Response": proof}

    def test_registration_without_a_session_ends(self, api: InMemoryApi) -> None:
        check_end(ask(api, "POST", "/login/bind", b"", tls=True), "")
        check_end(ask(api, "POST", "/login/bind", b"", {"Cookie": f"session={'x' * 43}"}, tls=True), "")


class RefreshTests:
    def test_proof_is_renewed_in_one_round(self, api: InMemoryApi, device: Device) -> None:
        for _ in range(10):
            api.clock.advance(599)
            assert device.gets("/home") == 200
            api.clock.advance(240)
            before = dict(device.cookies)
            assert device.refresh().status == 200
            assert device.cookies[PROOF] != before[PROOF]
            assert device.cookies["session"] == before["session"]

    def test_key_suffices(self, api: InMemoryApi, device: Device) -> None:
        """A refresh that another site has caused has no cookies."""
        session, device.cookies = device.cookies, {}
        assert device.refresh().status == 200
        device.cookies["session"] = session["session"]
        assert device.gets("/home") == 200

    def test_request_without_a_proof_is_asked_for_one(self, device: Device) -> None:
        headers = {"Sec-Secure-Session-Id": device.session_id}
        check_asks(device.ask("POST", "/login/bind/refresh", headers, b""), device.session_id)

    def test_renewing_ends_no_other_proof(self, api: InMemoryApi, device: Device) -> None:
        other = device.copy()
        api.clock.advance(300)
        for _ in range(3):
            assert device.refresh().status == 200
        assert other.gets("/home") == 200
        api.clock.advance(299)
        assert other.gets("/home") == 200

    def test_proof_is_refused_and_nothing_ends(self, api: InMemoryApi, device: Device) -> None:
        bob = Device(api)
        bob.bind("bob")
        used = make_proof(device.key, device.challenge)
        assert device.refresh(used).status == 200
        session_id = device.session_id
        head, body, signature = used.split(".")
        for proof in (
            used,
            f"{head}.{body}.{signature[::-1]}",
            f"{head}.{body}.",
            make_proof(OTHER, device.challenge),
            make_proof(device.key, bob.challenge),
            make_proof(bob.key, device.challenge),
            make_proof(device.key, device.challenge, registers=True),
            make_proof(OTHER, device.challenge, registers=True),
            make_proof(device.key, device.challenge, alg="none"),
            make_proof(device.key, "x"),
            "x",
        ):
            check_asks(device.refresh(proof), session_id)
        assert device.gets("/home") == 200
        assert device.refresh().status == 200

    def test_old_challenge_is_refused(self, api: InMemoryApi, device: Device) -> None:
        """The one that came with a proof is good for five minutes after the proof, one that was asked for at once."""
        api.clock.advance(899)
        assert device.refresh().status == 200
        assert device.gets("/home") == 200
        api.clock.advance(901)
        check_asks(device.refresh(), device.session_id)
        api.clock.advance(301)
        check_asks(device.refresh(), device.session_id)
        api.clock.advance(299)
        assert device.refresh().status == 200

    @each("session_id", ["", "x", "A" * 64, "\xff", "a, b"])
    def test_unknown_session_ends(self, session_id: str) -> None:
        api = InMemoryApi(None, '[session]\nbind = "offer"')
        headers = {"Sec-Secure-Session-Id": session_id, "Secure-Session-Response": "x"}
        echoed = session_id if session_id.isalnum() and session_id.isascii() else ""
        check_end(ask(api, "POST", "/login/bind/refresh", b"", headers, tls=True), echoed)
        check_end(ask(api, "POST", "/login/bind/refresh", b"", tls=True), "")
        api.close()

    def test_ended_session_ends(self, api: InMemoryApi, device: Device) -> None:
        session_id = device.session_id
        answer = device.ask("POST", "/logout", {}, b"")
        assert device.cookies == {}
        assert len(answer.headers["set-cookie"]) == 2
        check_end(device.refresh(), session_id)
        assert device.gets("/home") == 302

    def test_expired_session_ends(self, api: InMemoryApi, device: Device) -> None:
        session_id = device.session_id
        api.clock.advance(1801)
        check_end(device.refresh(), session_id)

    def test_second_sign_in_ends_the_first_session(self, api: InMemoryApi, device: Device) -> None:
        first, challenge = device.session_id, device.challenge
        device.sign_in()
        device.register()
        assert device.gets("/home") == 200
        assert device.session_id != first
        headers = {"Sec-Secure-Session-Id": first, "Secure-Session-Response": make_proof(device.key, challenge)}
        check_end(device.ask("POST", "/login/bind/refresh", headers, b""), first)
        assert device.gets("/home") == 200

    def test_unavailable_store_is_later(
        self, api: InMemoryApi, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("away")

        for method in ("get_session", "use_proof"):
            with monkeypatch.context() as patched:
                patched.setattr(api.store, method, refuse)
                answer = device.refresh()
                assert answer.status == 503
                assert answer.header("Retry-After")
        assert device.refresh().status == 200

    @each("method", ["GET", "PUT", "DELETE"])
    @each("path", ["/login/bind", "/login/bind/refresh"])
    def test_only_post_is_answered(self, method: str, path: str) -> None:
        api = InMemoryApi(None, '[session]\nbind = "offer"')
        assert ask(api, method, path, tls=True).header("Allow") == "OPTIONS, POST"
        api.close()

    def test_request_of_another_site_is_judged_by_its_key(self, device: Device) -> None:
        fields = {"Sec-Fetch-Site": "cross-site", "Origin": "https://other.example"}
        assert device.refresh(**fields).status == 200

    def test_throttle_does_not_count(self, make: MakeApi) -> None:
        api = make(f"{SETTINGS}{RULE}[throttle]\nfailures = 1\naddress_failures = 2")
        device = Device(api)
        device.bind()
        for _ in range(5):
            check_asks(device.refresh("x"), device.session_id)
            body = b"username=bob&password=x"
            ask(api, "POST", "/login", body, {"Content-Type": "application/x-www-form-urlencoded"})
        assert device.refresh().status == 200


class ThiefTests:
    def test_cookie_alone_is_worth_nothing(self, api: InMemoryApi, device: Device) -> None:
        thief = device.copy("session")
        api.clock.advance(4)
        assert thief.gets("/home") == 200, "a request on its way"
        api.clock.advance(2)
        for path, status in {"/home": 302, "/page": 401, "/post": 401, "/login/session": 401, "/account": 401}.items():
            assert thief.gets(path) == status, path
        assert device.gets("/home") == 200

    @pytest.mark.parametrize(
        ("first_s", "until_s"), [(0, 5), (30, 35), (58, 63), (60, 65), (63, 65), (70, 70), (500, 500)]
    )
    def test_grace_ends_with_the_first_proof_or_after_a_minute(
        self, api: InMemoryApi, first_s: float, until_s: float
    ) -> None:
        device = Device(api)
        device.sign_in()
        device.register()
        thief = device.copy("session")
        api.clock.advance(first_s)
        assert thief.gets("/post") == 200
        assert device.gets("/post") == 200
        api.clock.advance(max(until_s - first_s - 0.1, 0))
        assert thief.gets("/post") == (200 if until_s > first_s else 401)
        api.clock.advance(0.2)
        assert thief.gets("/post") == 401

    def test_clock_that_is_far_behind_makes_no_grace(self, api: InMemoryApi, device: Device) -> None:
        """That of another node, before it has reached the dates in the store."""
        thief = device.copy("session")
        api.clock.advance(-59)
        assert thief.gets("/post") == 200, "clocks may differ by a minute"
        api.clock.advance(-2)
        assert thief.gets("/post") == 401
        assert device.gets("/post") == 200

    def test_copied_proof_ends_with_its_time(self, api: InMemoryApi, device: Device) -> None:
        thief = device.copy()
        api.clock.advance(599)
        assert thief.gets("/post") == 200
        device.refresh()
        api.clock.advance(67)  # clocks may differ by a minute
        assert thief.gets("/post") == 401
        assert device.gets("/post") == 200

    def test_thief_renews_nothing(self, api: InMemoryApi, device: Device) -> None:
        thief = device.copy()
        for _ in range(3):
            check_asks(thief.refresh(), device.session_id)
            check_asks(thief.register())
        api.clock.advance(700)
        assert thief.gets("/post") == 401
        device.refresh()
        assert device.gets("/post") == 200

    def test_proof_of_another_session_is_none(self, api: InMemoryApi, device: Device) -> None:
        bob = Device(api)
        bob.bind("bob")
        api.clock.advance(10)
        thief = device.copy("session")
        thief.cookies[PROOF] = bob.cookies[PROOF]
        assert thief.gets("/post") == 401
        thief.cookies[PROOF] = "0" * 72
        assert thief.gets("/post") == 401

    def test_cookies_planted_beside_change_nothing(self, api: InMemoryApi, device: Device) -> None:
        bob = Device(api)
        bob.bind("bob")
        api.clock.advance(10)
        both = f"session={bob.cookies['session']}; session={device.cookies['session']}"
        assert ask(api, "GET", "/post", headers={"Cookie": both}, tls=True).status == 401
        one = f"{both}; {PROOF}={device.cookies[PROOF]}"
        answer = ask(api, "GET", "/home", headers={"Cookie": one}, tls=True)
        assert answer.body == b"Success: alice\n", "a session without a proof counts as none"

    def test_stream_ends_with_its_proof(self, api: InMemoryApi, device: Device) -> None:
        device.refresh()
        stream = begin(api, "GET", "/post/events", headers=device.cookie, tls=True)
        thief = begin(api, "GET", "/post/events", headers=device.copy("session").cookie, tls=True)
        api.clock.advance(7)
        assert not thief.transport.connected
        for _ in range(88):
            api.clock.advance(10)
            assert stream.transport.connected
        api.clock.pump([10] * 3)
        assert not stream.transport.connected

    def test_sign_out_needs_no_proof(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(10)
        assert device.copy("session").ask("POST", "/logout", {}, b"").status == 302
        assert device.gets("/home") == 302

    def test_log_says_so_without_secrets(self, api: InMemoryApi) -> None:
        with capturedLogs() as events:
            device = Device(api)
            device.bind()
            api.clock.advance(10)
            device.copy("session").gets("/post")
            device.refresh("x")
        log = "\n".join(formatEvent(event) or "" for event in events)
        assert "session bound to a device: 'alice'" in log
        assert "login refused: session 'alice' from 127.0.0.1: no live proof of the device" in log
        assert "login refused: bind 'alice' from 127.0.0.1: it is not a JWT; a new challenge is sent" in log
        for secret in (*device.cookies.values(), device.challenge, device.session_id):
            assert secret not in log


class WorkerTests:
    def test_workers_know_sessions_and_challenges_of_each_other(self, api: InMemoryApi, device: Device) -> None:
        other = restart(api, api.settings)
        used = make_proof(device.key, device.challenge)
        moved = replace(device, server=other)
        assert moved.gets("/post") == 200
        assert moved.refresh(used).status == 200
        check_asks(device.refresh(used), device.session_id)
        device.cookies = moved.cookies
        assert device.gets("/post") == 200
        api.clock.advance(10)
        assert replace(device.copy("session"), server=other).gets("/post") == 401

    def test_first_proof_at_one_worker_binds_at_all(self, api: InMemoryApi) -> None:
        other = restart(api, api.settings)
        device = Device(api)
        device.sign_in()
        thief = device.copy("session")
        stolen = replace(thief, server=other)
        assert stolen.gets("/post") == 200
        device.register()
        device.gets("/home")
        api.clock.advance(6)
        assert (thief.gets("/post"), stolen.gets("/post")) == (401, 401)

    @pytest.mark.parametrize("offset_s", [60.0, -60.0])
    def test_clock_that_is_a_minute_off_ends_no_session(self, api: InMemoryApi, offset_s: float) -> None:
        with patch("tests.protect.test_login.ServiceClock", partial(ServiceClock, offset_s=offset_s)):
            other = restart(api, api.settings)
        device = Device(api)
        device.bind()
        moved = replace(device, server=other)
        for _ in range(5):
            api.clock.advance(599)
            assert (device.gets("/post", BROWSER), moved.gets("/post", BROWSER)) == (200, 200)
            assert moved.refresh().status == 200
            device.cookies = moved.cookies


@pytest.mark.slow
def test_day_with_restarts_and_lost_answers_ends_no_session_and_lets_no_thief_in(make: MakeApi) -> None:
    api = make(SETTINGS.replace("[session]", '[session]\nlifetime = "36h"') + RULE)
    chance, device = Random(1), Device(api)
    device.bind()
    api.clock.advance(10)
    end_s, renewed_s, refreshes = api.clock.seconds() + 86400, api.clock.seconds(), 0
    thieves: list[tuple[float, Device]] = []
    while api.clock.seconds() < end_s:
        api.clock.advance(chance.choice([1, 60, 300, 600]))
        now_s = api.clock.seconds()
        if chance.random() < 0.05:
            device.server = restart(api, api.settings)
        if now_s - renewed_s > 480:  # Chromium renews a proof two minutes before it expires
            renew(device, chance)
            renewed_s, refreshes = now_s, refreshes + 1
        assert [device.gets(path, BROWSER) for path in ("/home", "/post")] == [200, 200]
        thieves = [*thieves[-5:], (now_s, device.copy(*chance.choice([(), ("session",)])))]
        for taken_s, thief in thieves:
            if PROOF not in thief.cookies or now_s - taken_s > 700:
                thief.server = device.server
                assert (thief.gets("/post"), thief.refresh().status) == (401, 403)
    assert refreshes >= 100


def renew(device: Device, chance: Random) -> None:
    """Renew the proof as a browser does that repeats a request, or loses the answer to it."""
    before, challenge = dict(device.cookies), device.challenge
    assert device.refresh().status == 200 or device.refresh().status == 200, "the challenge may be old"
    if chance.random() < 0.2:
        device.cookies, device.challenge = before, challenge
        assert device.refresh().status == 403
        assert device.refresh().status == 200


class SentBackTests:
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    @pytest.mark.parametrize("path", ["/page", "/home", "/account", "/", "/?next=/page", "/page?a=b"])
    def test_browser_is_sent_back_once(self, api: InMemoryApi, device: Device, method: str, path: str) -> None:
        api.clock.advance(700)
        answer = device.ask(method, path, NAVIGATION)
        assert (answer.status, answer.header("Cache-Control")) == (401, "no-store")
        assert answer.header("WWW-Authenticate")
        assert method == "HEAD" or f'<meta http-equiv="refresh" content="0; url={path}">' in answer.body.decode()
        assert {"session", RETURN} <= device.cookies.keys()
        again = device.ask(method, path, NAVIGATION)
        form = path.startswith("/?") or path == "/"
        assert again.status == (200 if form else 302)
        assert "session" in device.cookies, "the browser may be able to prove itself later"
        if not form:
            target = again.header("Location") or ""
            assert device.gets(target, NAVIGATION) == 200, "the form"
            assert b"login_form" in device.ask("GET", target, NAVIGATION).body

    def test_open_page_is_shown_to_a_browser_without_a_proof(self, make: MakeApi) -> None:
        """It is sent back, so that the page knows who is signed in; without a proof the page is as for everyone."""
        api = make('[session]\nbind = "offer"\n[api]\nwrite = ["session"]\n')
        device = Device(api)
        device.bind()
        api.clock.advance(700)
        assert device.gets("/board", NAVIGATION) == 401
        assert device.gets("/board", NAVIGATION) == 200
        assert device.gets("/post", NAVIGATION) == 200
        device.refresh()
        assert "alice" in text_of(device, "/board")

    def test_page_leads_to_no_other_site(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(700)
        for path in ("//other.example/", "/\\other.example", "/page?<\"'&=%22%3E", "/page?" + "x" * 3000):
            answer = device.ask("GET", path, NAVIGATION)
            if answer.status == 401:
                found = re.findall(r'<meta http-equiv="refresh" content="([^"]*)">', answer.body.decode())
                assert found in (["0"], ["0; url=/page?&lt;&quot;&#x27;&amp;=%22%3E"]), path

    def test_proof_leads_on(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(700)
        assert device.gets("/page", NAVIGATION) == 401
        assert device.refresh().status == 200
        assert RETURN not in device.cookies
        assert device.gets("/page", NAVIGATION) == 200
        api.clock.advance(700)
        assert device.gets("/page", NAVIGATION) == 401, "another time, once again"

    def test_tabs_are_sent_back_each(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(700)
        for tab in range(8):
            assert device.gets(f"/page?{tab}", NAVIGATION) == 401
        for tab in range(10):
            assert device.gets(f"/page?{tab}", NAVIGATION) == 302, "never for ever"

    def test_program_is_not_sent_back(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(700)
        fetch = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "Accept": "*/*"}
        for headers in ({}, fetch):
            assert device.gets("/page", headers) == 401
            assert device.gets("/account", headers) == 401
            home = device.ask("GET", "/home", headers)
            assert (home.status, home.header("Location")) == (302, "/")
            check_problem(device.ask("GET", "/post", headers), 401)
            assert device.ask("GET", "/", headers).status == 200
        assert {"session", PROOF} == device.cookies.keys()

    def test_form_is_carried_through_the_sign_in(self, api: InMemoryApi, device: Device) -> None:
        api.clock.advance(700)
        form = {**BROWSER, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
        answer = device.ask("POST", "/page", form, b"a=b")
        assert answer.status == 401
        assert b'value="a=b"' in answer.body
        assert "session" in device.cookies


class AccountTests:
    def test_pages_say_which_sessions_are_bound(self, api: InMemoryApi, device: Device) -> None:
        other = Device(api)
        other.sign_in()
        assert "is bound to this device" in text_of(device, "/account")
        assert "not bound to a device" in text_of(other, "/account")
        for one in (device, other):
            shown = text_of(one, "/account/sessions")
            assert shown.count(">bound to its device<") == 1
            assert shown.count(">not bound to a device<") == 1

    def test_account_without_a_bound_session_is_as_before(self, api: InMemoryApi) -> None:
        device = Device(api)
        device.sign_in()
        device.register()
        device.cookies.pop(PROOF)
        for path in ("/account", "/account/sessions"):
            assert "bound" not in text_of(device, path)

    def test_unbound_session_of_an_account_with_bound_ones_needs_the_password(
        self, make: MakeApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def change(task: SessionTask, request: Request, visitor: Visitor) -> Any:
            asked = await task.area.confirm(request, visitor, decode_query(request))
            return task.area.redirect("account") if asked is None else asked

        monkeypatch.setattr(SessionTask, "_show", change)
        api = make(SETTINGS + RULE)
        device, other = Device(api), Device(api)
        device.bind()
        other.sign_in()
        assert device.gets("/account/sessions") == 303
        assert other.gets("/account/sessions") == 401
        assert other.gets("/account/sessions?password=x") == 401
        api.clock.advance(1)
        assert other.gets(f"/account/sessions?{urlencode({'password': PASSWORD})}") == 303
        assert other.gets("/account/sessions") == 303
        api.clock.advance(901)
        assert other.gets("/account/sessions") == 401
        other.sign_in()
        assert other.gets("/account/sessions") == 401
        other.register()
        assert other.gets("/account/sessions") == 303
        bob = Device(api)
        bob.sign_in("bob")
        assert bob.gets("/account/sessions") == 303, "an account that never had a bound session"


def text_of(device: Device, path: str) -> str:
    answer = device.ask("GET", path)
    assert answer.status == 200
    return answer.body.decode()


class GatewayTests:
    @pytest.fixture
    def gateway(self, make: MakeApi) -> Device:
        api = make(f'trusted_proxies = ["127.0.0.1"]\n{SETTINGS}forward = true\n{RULE}')
        device = Device(api)
        device.bind()
        return device

    def test_described_request_is_judged_alike(self, gateway: Device) -> None:
        caddy = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/app?x=1", "X-Forwarded-Proto": "https"}
        nginx = {"X-Original-Method": "GET", "X-Original-Uri": "/app?x=1", "X-Forwarded-Proto": "https"}
        for proxy in (caddy, nginx):
            answer = gateway.ask("GET", "/page", proxy)
            assert (answer.status, answer.header("Remote-User")) == (200, "alice")
        gateway.server.clock.advance(700)
        assert gateway.gets("/page", {**nginx, **NAVIGATION}) == 401
        assert gateway.gets("/page", caddy) == 401
        to_form = gateway.ask("GET", "/page", {**caddy, **NAVIGATION})
        assert (to_form.status, to_form.header("Location")) == (302, "/?next=/app%3Fx%3D1")
        direct = {"X-Forwarded-Proto": "https", **NAVIGATION}
        sent_back = gateway.ask("GET", "/?next=/app%3Fx%3D1", direct)
        assert sent_back.status == 401
        assert b'http-equiv="refresh"' in sent_back.body
        assert gateway.refresh().status == 200
        lead_on = gateway.ask("GET", "/?next=/app%3Fx%3D1", direct)
        assert (lead_on.status, lead_on.header("Location")) == (302, "/app?x=1")
        assert gateway.gets("/page", {**caddy, **NAVIGATION}) == 200


class LibraryTests:
    def test_program_binds_sessions_if_it_asks_for_it(self, make_program: MakeProgram) -> None:
        program = make_program(sign_in="/sign-in", bind_sessions=True)
        program.mount("page", "session")
        program.root.putChild(b"sign-in", program.protection.pages(after="/page"))
        device = Device(program)
        device.sign_in(path="/sign-in/login")
        assert device.path == "/sign-in/login/bind"
        assert device.register().status == 200
        assert device.gets("/page") == 200
        program.clock.advance(10)
        assert device.copy("session").gets("/page") == 401
        assert device.gets("/page") == 200
        program.clock.advance(700)
        assert device.gets("/page", NAVIGATION) == 401
        assert device.refresh().status == 200
        assert device.gets("/page", NAVIGATION) == 200

    def test_wrong_argument_is_named(self, make_program: MakeProgram) -> None:
        with pytest.raises(ValueError, match=r"^bind_sessions: "):
            make_program(bind_sessions="offer")


class StoredTests:
    def test_store_has_the_public_key(self, api: InMemoryApi, device: Device) -> None:
        id_hash = hash_session_id(device.cookies["session"])
        assert id_hash is not None
        session = result_of(api.store.get_session(id_hash))
        assert json.loads(session.device_key)["x"] == device.key.jwk()["x"]
        assert session.bound == api.START_S
        assert result_of(api.store.was_bound("alice"))
        assert not result_of(api.store.was_bound("bob"))
