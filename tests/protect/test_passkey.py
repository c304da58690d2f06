"""Passkeys: the pages that add them, the button of the form, and sign-in by one (reference: Passkeys)."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.authenticator import Authenticator
from tests.helpers import InMemoryApi, Response, result_of
from tests.protect.program import MakeProgram
from tests.protect.test_login import BROWSER, check_page
from tests.web.clients import PASSWORD, account
from tests.web.wire import FORM, Server, ask, user_line

MakeApi = Callable[..., InMemoryApi]

ORIGIN = "https://posts.example"
ON = f'public_url = "{ORIGIN}"\n[accounts]\npasskeys = true\n'
AT_LOCALHOST = "[accounts]\npasskeys = true\n"
PAGE, OPTIONS, SIGN_IN = "/account/passkeys", "/account/passkeys/options", "/login/passkey"
BUTTON = 'value="Sign in with a passkey"'


class Browser:
    """A browser with cookies."""

    def __init__(self, server: Server, below: str = "", host: str = "posts.example") -> None:
        self.server, self.below, self.host = server, below, host
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, fields: Mapping[str, str] | None = None, **headers: Any) -> Response:
        sent: dict[str, str] = {
            **BROWSER,
            "Host": self.host,
            **{name.replace("_", "-"): headers[name] for name in headers},
        }
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body = None
        if fields is not None:
            sent["Content-Type"], body = FORM, urlencode(fields).encode()
        answer = ask(self.server, method, self.below + path, body, sent)
        for line in answer.headers.get("set-cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value:
                self.cookies[name] = value
        return answer

    def get(self, path: str, **headers: Any) -> Response:
        return self.ask("GET", path, **headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: Any) -> Response:
        return self.ask("POST", path, fields, **headers)

    def log_in(self, name: str = "alice") -> "Browser":
        assert self.post("/login", {"username": name, "password": PASSWORD}).status == 302
        return self

    def options(self, path: str) -> dict[str, Any]:
        answer = self.get(path)
        assert (answer.status, answer.header("Content-Type")) == (200, "application/json"), answer.body
        assert answer.header("Cache-Control") == "no-store"
        decoded: dict[str, Any] = json.loads(answer.body)
        return decoded

    def add(self, device: Authenticator, label: str = "phone") -> Response:
        return self.post(PAGE, {"credential": device.create(self.options(OPTIONS)), "label": label})

    def sign_in(self, device: Authenticator, fields: Mapping[str, str] | None = None, **faults: Any) -> Response:
        credential = device.get(self.options(SIGN_IN), **faults)
        return self.post(SIGN_IN, {"credential": credential, **(fields or {})})


@pytest.fixture
def api(make: MakeApi) -> InMemoryApi:
    return make(ON)


@pytest.fixture
def device() -> Authenticator:
    return Authenticator(ORIGIN)


def scripts_in(answer: Response) -> list[str]:
    """Return the scripts of a page, which its policy names by their hashes, and nothing else."""
    found = re.findall(r"<script>(.*?)</script>", answer.body.decode(), re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found]
    policy = answer.header("Content-Security-Policy") or ""
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{one}'" for one in hashes]
    return found


class FormTests:
    def test_form_has_the_button_and_autofill_for_browsers(self, api: InMemoryApi) -> None:
        answer = Browser(api).get("/?next=/board")
        text = answer.body.decode()
        form = re.findall(r'<form name="passkey_form".*?</form>', text, re.DOTALL)[0]
        assert BUTTON in form
        assert f'data-origin="{ORIGIN}" hidden>' in form
        assert '<input type="hidden" name="next" value="/board">' in form
        assert 'autocomplete="username webauthn"' in text
        assert len(scripts_in(answer)) == 1
        assert "connect-src 'self'" in (answer.header("Content-Security-Policy") or "")

    def test_programs_get_the_form_of_before(self, api: InMemoryApi, make: MakeApi) -> None:
        without = make(f'public_url = "{ORIGIN}"')
        for path in ("/", "/?next=/board"):
            here, there = (ask(server, "GET", path, headers={"Host": "posts.example"}) for server in (api, without))
            assert (here.status, here.body, {*here.headers}) == (there.status, there.body, {*there.headers})

    def test_there_is_nothing_where_passkeys_are_off(self, make: MakeApi) -> None:
        browser = Browser(make(f'public_url = "{ORIGIN}"')).log_in()
        for path in (PAGE, OPTIONS, SIGN_IN):
            assert browser.get(path).status == 404
        answer = Browser(browser.server).get("/")
        assert b"passkey_form" not in answer.body
        assert b"webauthn" not in answer.body
        assert scripts_in(answer) == []
        assert PAGE.encode() not in browser.get("/account").body

    def test_there_is_no_button_without_accounts(self, make: MakeApi) -> None:
        assert BUTTON.encode() not in Browser(make(ON, "")).get("/").body

    def test_failed_sign_in_has_the_button(self, api: InMemoryApi) -> None:
        answer = Browser(api).post("/login", {"username": "alice", "password": "wrong", "next": "/board"})
        assert answer.status == 401
        assert answer.body.count(b'name="next" value="/board"') == 2
        assert len(scripts_in(answer)) == 1


class AddressTests:
    """The addresses at which passkeys work."""

    @pytest.mark.parametrize("host", ["localhost:12345", "posts.localhost:12345", "LOCALHOST:12345"])
    def test_localhost_on_the_port_of_the_connection(self, make: MakeApi, host: str) -> None:
        device = Authenticator(f"http://{host.lower()}")
        browser = Browser(make(AT_LOCALHOST), host=host).log_in()
        assert browser.options(OPTIONS)["rp"]["id"] == host.lower().partition(":")[0]
        assert browser.add(device).status == 303
        other = Browser(browser.server, host=host)
        assert BUTTON.encode() in other.get("/").body
        assert other.sign_in(device).status == 302

    @pytest.mark.parametrize(
        "host", ["127.0.0.1:12345", "localhost", "localhost:3000", "posts.example:12345", "[::1]:12345"]
    )
    def test_other_address_has_no_button_and_says_why(self, make: MakeApi, host: str) -> None:
        browser = Browser(make(AT_LOCALHOST), host=host)
        assert BUTTON.encode() not in browser.get("/").body
        for answer in (browser.get(SIGN_IN), browser.post(SIGN_IN, {"credential": "{}"})):
            assert answer.status == 400
            assert b"Passkeys do not work at this address" in answer.body
        assert browser.get(SIGN_IN, Accept="*/*").status == 400
        browser.log_in()
        assert b"Passkeys do not work at this address" in browser.get(PAGE).body
        assert (browser.get(OPTIONS).status, browser.post(PAGE, {}).status) == (400, 400)

    def test_without_public_url_the_host_of_a_proxy_is_not_believed(self, make: MakeApi) -> None:
        api = make('trusted_proxies = ["127.0.0.1"]\n' + AT_LOCALHOST)
        browser = Browser(api, host="localhost")
        assert browser.get(SIGN_IN, X_Forwarded_Proto="https", X_Forwarded_For="192.0.2.1").status == 400

    @pytest.mark.parametrize("url", ["http://posts.example", "https://192.0.2.1", "http://127.0.0.1:8080"])
    def test_public_url_without_passkeys(self, make: MakeApi, url: str) -> None:
        browser = Browser(make(f'public_url = "{url}"\n' + AT_LOCALHOST), host=url.partition("://")[2])
        assert BUTTON.encode() not in browser.get("/").body
        assert browser.get(SIGN_IN).status == 400


class AccountPageTests:
    def test_passkey_is_added_listed_renamed_and_removed(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api).log_in()
        page = browser.get(PAGE)
        check_page(page)
        assert "You have no passkeys." in page.body.decode()
        assert len(scripts_in(page)) == 1
        answer = browser.add(device, " <Phone> ")
        assert (answer.status, answer.header("Location")) == (303, "/account/passkeys?done=added#done")
        page = browser.get(f"{PAGE}?done=added")
        text = page.body.decode()
        assert "&lt;Phone&gt; <span" in text
        assert ">on one device</span>" in text
        assert "Added <time" in text
        assert "Not used yet." in text
        assert "You have one." in browser.get("/account").body.decode()
        (id_,) = set(re.findall(r'name="id" value="([0-9a-z]{12})"', text))
        assert browser.post(f"{PAGE}/rename", {"id": id_, "label": "tablet"}).status == 303
        Browser(api).sign_in(device)
        text = browser.get(PAGE).body.decode()
        assert ">tablet <span" in text
        assert "Last used <time" in text
        assert browser.post(f"{PAGE}/remove", {"id": id_}).header("Location") == f"{PAGE}?done=removed#done"
        assert browser.post(f"{PAGE}/remove", {"id": id_}).header("Location") == f"{PAGE}?done=gone#done"
        assert "You have no passkeys." in browser.get(PAGE).body.decode()
        assert Browser(api).sign_in(device).status == 401

    def test_passkeys_of_others_are_out_of_reach(self, api: InMemoryApi, device: Authenticator) -> None:
        alice, bob = Browser(api).log_in(), Browser(api).log_in("bob")
        alice.add(device)
        (id_,) = set(re.findall(r'name="id" value="([0-9a-z]{12})"', alice.get(PAGE).body.decode()))
        for path in ("rename", "remove"):
            assert (bob.post(f"{PAGE}/{path}", {"id": id_, "label": "x"}).header("Location") or "").startswith(
                f"{PAGE}?done=gone"
            )
        assert id_ not in bob.get(PAGE).body.decode()
        assert "phone" in alice.get(PAGE).body.decode()

    def test_options_name_the_passkeys_there_are(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api).log_in()
        browser.add(device)
        options = browser.options(OPTIONS)
        encoded = base64.urlsafe_b64encode(device.credential_id).rstrip(b"=").decode()
        assert options["excludeCredentials"] == [{"type": "public-key", "id": encoded}]
        assert options["user"]["name"] == "alice"
        assert options["rp"] == {"id": "posts.example", "name": "postd"}

    def test_answer_to_another_session_is_refused(self, api: InMemoryApi, device: Authenticator) -> None:
        alice, bob = Browser(api).log_in(), Browser(api).log_in("bob")
        credential = device.create(alice.options(OPTIONS))
        answer = bob.post(PAGE, {"credential": credential, "label": "phone"})
        assert answer.status == 400
        assert "taken too long" in answer.body.decode()
        assert Browser(api).sign_in(device).status == 401
        assert alice.post(PAGE, {"credential": credential, "label": "phone"}).status == 303
        assert alice.post(PAGE, {"credential": credential, "label": "phone"}).status == 400

    def test_passkey_belongs_to_one_account(self, api: InMemoryApi, device: Authenticator) -> None:
        Browser(api).log_in().add(device)
        answer = Browser(api).log_in("bob").add(device)
        assert answer.status == 409
        assert 'role="alert"' in answer.body.decode()

    @pytest.mark.parametrize("credential", ["{}", "no JSON", "[" * 2000])
    def test_malformed_credential_is_an_alert(self, api: InMemoryApi, credential: str) -> None:
        answer = Browser(api).log_in().post(PAGE, {"credential": credential, "label": "phone"})
        assert answer.status == 400
        assert "The passkey was not accepted." in answer.body.decode()

    @pytest.mark.parametrize("label", ["x" * 101, "a\nb", "\0"])
    def test_label_that_is_none_is_400(self, api: InMemoryApi, device: Authenticator, label: str) -> None:
        assert Browser(api).log_in().add(device, label).status == 400

    def test_old_sign_in_is_confirmed_first(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api).log_in()
        api.clock.advance(16 * 60)
        assert browser.get(OPTIONS).status == 403
        asked = browser.post(PAGE, {"credential": "", "label": "phone"})
        assert asked.status == 401
        assert b'name="password"' in asked.body
        assert BUTTON.encode() not in asked.body  # the account has none
        back = browser.post(PAGE, {"label": "phone", "password": PASSWORD})
        assert (back.status, back.header("Location")) == (303, f"{PAGE}?done=confirmed#done")
        assert browser.add(device).status == 303

    def test_passkey_confirms_an_old_sign_in(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api).log_in()
        browser.add(device)
        api.clock.advance(16 * 60)
        asked = browser.post(PAGE, {"label": "tablet"})
        assert BUTTON.encode() in asked.body
        assert len(scripts_in(asked)) == 1
        form = re.findall(r'<form name="passkey_form".*?</form>', asked.body.decode(), re.DOTALL)[0]
        hidden = dict(re.findall(r'name="(next|form)" value="([^"]*)"', form))
        assert hidden == {"next": PAGE, "form": "label=tablet"}
        assert browser.sign_in(device, hidden).status == 200
        assert browser.get(OPTIONS).status == 200

    def test_pages_need_a_session_and_a_page_of_this_site(self, api: InMemoryApi) -> None:
        browser = Browser(api)
        for path in (PAGE, OPTIONS):
            assert (browser.get(path).header("Location") or "").startswith("/?next=/account/passkeys")
        browser.log_in()
        for path in (PAGE, f"{PAGE}/rename", f"{PAGE}/remove"):
            assert browser.post(path, {"id": "x"}, Sec_Fetch_Site="same-site").status == 403
        for path in (f"{PAGE}/rename", f"{PAGE}/remove"):
            assert browser.get(path).status == 405
        assert browser.post(PAGE, {"credential": "x" * 9000}).status == 413


class SignInTests:
    @pytest.fixture
    def device(self, api: InMemoryApi, device: Authenticator) -> Authenticator:
        assert Browser(api).log_in().add(device).status == 303
        return device

    def test_session_is_that_of_the_form(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api)
        with capturedLogs() as events:
            answer = browser.sign_in(device)
        assert (answer.status, answer.header("Location")) == (302, "/home")
        assert re.fullmatch(
            r"session=[\w-]{43}; Path=/; HttpOnly; SameSite=Lax; Secure", answer.header("Set-Cookie") or ""
        )
        assert "signed in: 'alice' from 127.0.0.1 by passkey" in list(map(formatEvent, events))
        assert browser.get("/home", Accept="*/*").body == b"Success: alice\n"
        assert browser.get(OPTIONS).status == 200  # a recent sign-in

    def test_session_before_ends(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api).log_in("bob")
        before = browser.cookies["session"]
        browser.sign_in(device)
        assert browser.cookies["session"] != before
        browser.cookies["session"] = before
        assert browser.get("/home").status == 302

    def test_next_is_the_page_after_it(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api)
        for next_, expected in (("/board?after=2", "/board?after=2"), ("//evil.example/", "/home"), ("x", "/home")):
            assert browser.sign_in(device, {"next": next_}).header("Location") == expected

    def test_carried_form_comes_back(self, api: InMemoryApi, device: Authenticator) -> None:
        carried = {"next": "/board", "form": urlencode({"text": "typed before"})}
        answer = Browser(api).sign_in(device, carried)
        assert answer.status == 200
        assert "typed before" in answer.body.decode()

    def test_several_tabs_of_a_browser_can_sign_in(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api)
        first, second = browser.options(SIGN_IN), browser.options(SIGN_IN)
        for options in (second, first):
            assert browser.post(SIGN_IN, {"credential": device.get(options)}).status == 302

    def test_challenge_is_bound_to_the_browser_by_a_cookie(self, api: InMemoryApi, device: Authenticator) -> None:
        browser, other = Browser(api), Browser(api)
        answer = browser.get(SIGN_IN)
        line = answer.header("Set-Cookie") or ""
        assert re.fullmatch(
            r"passkey=[\w-]{43}; Path=/login/passkey; Max-Age=300; HttpOnly; SameSite=Lax; Secure", line
        )
        credential = device.get(json.loads(answer.body))
        for cookies in ({}, {"passkey": "x"}, {"passkey": "A" * 43}):
            other.cookies = dict(cookies)
            assert other.post(SIGN_IN, {"credential": credential}).status == 401
        assert browser.post(SIGN_IN, {"credential": credential}).status == 302
        assert browser.post(SIGN_IN, {"credential": credential}).status == 401

    def test_refusal_is_that_of_the_form(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api)
        bodies = set()
        for faults in ({"signature": b"wrong"}, {"credential_id": b"unknown"}, {"user_handle": b"other"}):
            answer = browser.sign_in(device, {"next": "/board"}, **faults)
            assert answer.status == 401
            assert (answer.header("WWW-Authenticate") or "").startswith("Cookie ")
            assert "session" not in browser.cookies
            bodies.add(answer.body)
        (body,) = bodies
        assert b"Login failed: the passkey was not accepted." in body
        assert b'name="next" value="/board"' in body
        program = browser.post(SIGN_IN, {"credential": "{}"}, Accept="*/*")
        assert (program.status, program.body) == (401, b"Login failed\n")
        for fields in ({}, {"credential": ""}, {"credential": "[" * 2000}):
            assert browser.post(SIGN_IN, fields).status == 401
        late = device.get(browser.options(SIGN_IN), challenge="AAAA")
        assert b"taken too long" in browser.post(SIGN_IN, {"credential": late}).body

    def test_failures_of_an_address_are_limited(self, make: MakeApi) -> None:
        api = make(ON + "[throttle]\naddress_failures = 3\n")
        device = Authenticator(ORIGIN)
        Browser(api).log_in().add(device)
        browser = Browser(api)
        for _ in range(3):
            assert browser.sign_in(device, signature=b"wrong").status == 401
        answer = browser.sign_in(device)
        assert (answer.status, answer.header("Retry-After")) == (429, "300")

    def test_form_is_checked_as_that_of_a_password(self, api: InMemoryApi, device: Authenticator) -> None:
        browser = Browser(api)
        credential = device.get(browser.options(SIGN_IN))
        assert browser.post(SIGN_IN, {"credential": credential}, Sec_Fetch_Site="cross-site").status == 403
        assert browser.post(SIGN_IN, {"credential": "x" * 9000}).status == 413
        assert (
            ask(api, "POST", SIGN_IN, b"{}", {"Host": "posts.example", "Content-Type": "application/json"}).status
            == 415
        )
        assert browser.ask("PUT", SIGN_IN).status == 405
        assert browser.ask("HEAD", SIGN_IN).status == 200
        assert browser.post(SIGN_IN, {"credential": credential}).status == 302

    def test_account_that_is_added_again_has_no_passkeys(self, api: InMemoryApi, device: Authenticator) -> None:
        assert api.users is not None
        for users in (account("bob"), account("alice") + account("bob")):
            api.users.write_text(users)
            api.logins.context.users.refresh()
            assert Browser(api).sign_in(device).status == 401

    def test_new_password_keeps_passkeys(self, api: InMemoryApi, device: Authenticator) -> None:
        assert api.users is not None
        entry = api.logins.context.users.entry("alice")
        assert entry is not None
        changed = user_line("alice", "another password").rstrip("\n")
        api.users.write_text(f"{changed}:id={entry.hex()}\n" + account("bob"))
        api.logins.context.users.refresh()
        assert Browser(api).sign_in(device).status == 302


class LibraryTests:
    def test_pages_are_below_the_form(self, make_program: MakeProgram) -> None:
        program = make_program(sign_in="/sign-in", public_url=ORIGIN, passkeys=True)
        program.root.putChild(b"sign-in", program.protection.pages(after="/who"))
        program.mount("who", "session")
        device, browser = Authenticator(ORIGIN), Browser(program, "/sign-in").log_in()
        assert browser.add(device).header("Location") == "/sign-in/account/passkeys?done=added#done"
        other = Browser(program, "/sign-in")
        answer = other.sign_in(device)
        assert (answer.status, answer.header("Location")) == (302, "/who")
        session = {"Cookie": f"session={other.cookies['session']}"}
        assert program.get("/who", session).body == b"alice session  "

    @pytest.mark.parametrize("url", ["http://app.example", "https://192.0.2.1"])
    def test_public_url_without_passkeys_is_an_error(self, make_program: MakeProgram, url: str) -> None:
        with pytest.raises(ValueError, match=r"^passkeys: "):
            make_program(public_url=url, passkeys=True)


def test_passkeys_are_in_the_store(api: InMemoryApi, device: Authenticator) -> None:
    Browser(api).log_in().add(device)
    (passkey,) = result_of(api.store.list_passkeys())
    assert (passkey.credential_id, passkey.account) == (device.credential_id, "alice")
