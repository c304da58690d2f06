"""Changing a password at `/account/password`, and resetting it by a link (reference: Accounts)."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from postd.auth.password_reset import LIFETIME_S, hash_secret, make_secret
from postd.auth.user_file import Account, decode_users, make_account
from postd.protocol.passkey import Passkey
from postd.protocol.password import verify_password
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken, hash_token, make_record_id, make_token
from postd.protocol.session import hash_session_id, make_session, make_session_id
from tests.cases import each
from tests.helpers import InMemoryApi, Response, result_of
from tests.protect.program import MakeProgram, log_in
from tests.protect.test_account import send, sign_in
from tests.protect.test_cross_site import CROSS_SITE
from tests.protect.test_login import BROWSER, check_page, restart
from tests.web.clients import PASSWORD, basic, check_secret, recorded_log
from tests.web.wire import FORM, Server, ask, begin, digest_value, user_line

MakeApi = Callable[..., InMemoryApi]

CHANGE = """
[accounts]
change_password = true
"""
PROVIDER = """
[[sign_in]]
id = "idp"
name = "IdP"
issuer = "https://idp.example"
client_id = "postd"
"""
NEW = "a new pässword"
FIELDS = {"present": PASSWORD, "new": NEW, "again": NEW}


@pytest.fixture
def api(make: MakeApi) -> InMemoryApi:
    return make(CHANGE)


def change(
    server: Server, session: Mapping[str, Any], fields: Mapping[str, str] | None = None, **headers: str
) -> Response:
    return send(server, "/account/password", session, {**FIELDS, **(fields or {})}, headers)


def password_of(api: InMemoryApi, name: str = "alice") -> str:
    assert api.users is not None
    account = decode_users(api.users.read_bytes(), "users")[name]
    return next(text for text in (PASSWORD, NEW, "newer") if verify_password(account.password_hash, text))


def is_signed_in(server: Server, session: Mapping[str, Any]) -> bool:
    return ask(server, "GET", "/account", headers=session).status == 200


def add_credentials(api: InMemoryApi, name: str = "alice") -> None:
    """Give a user a token and a passkey."""
    entry = api.logins.context.users.entry(name)
    assert entry is not None
    token = PersonalToken(make_record_id(), name, entry, "ci", "read", api.clock.seconds(), api.clock.seconds() + 1e6)
    passkey = Passkey(make_record_id(), name.encode(), name, entry, b"key", "phone", api.clock.seconds())
    for adding in (api.store.add_token(hash_token(make_token()), token), api.store.add_passkey(passkey)):
        assert run(api, adding)


def count_credentials(api: InMemoryApi, name: str = "alice") -> list[int]:
    return [len(run(api, listing(name))) for listing in (api.store.list_tokens, api.store.list_passkeys)]


def run(api: InMemoryApi, work: Any) -> Any:
    done = Deferred.fromCoroutine(work)
    api.clock.advance(0)
    return result_of(done)


def lines_of(events: Any, level: str = "") -> list[str]:
    return [formatEvent(event) or "" for event in events if level in ("", event["log_level"].name)]


class ChangeTests:
    def test_page_has_a_form_for_password_managers(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        assert 'href="/account/password"' in ask(api, "GET", "/account", headers=session).body.decode()
        answer = ask(api, "GET", "/account/password", headers=session)
        text = answer.body.decode()
        assert answer.status == 200
        check_page(answer)
        for name, use in (("username", "username"), ("present", "current-password"), ("new", "new-password")):
            assert re.search(f'<input [^>]*name="{name}"[^>]* autocomplete="{use}"', text)
        assert text.count('autocomplete="new-password"') == 2
        assert 'value="alice"' in text

    def test_session_stays_when_the_file_is_reloaded_during_the_change(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another worker may find the new file before the session has the new fingerprint."""
        here, there = sign_in(api), sign_in(api)
        prove = api.store.prove_session

        async def prove_late(*args: Any, **kwargs: Any) -> None:
            api.logins.context.users.refresh()
            api.clock.advance(0)
            await prove(*args, **kwargs)

        monkeypatch.setattr(api.store, "prove_session", prove_late)
        assert change(api, here).status == 303
        api.clock.pump([1, 1])
        assert [is_signed_in(api, one) for one in (here, there)] == [True, False]

    def test_password_is_changed_and_this_session_stays(self, api: InMemoryApi) -> None:
        here, there, bob = sign_in(api), sign_in(api), sign_in(api, "bob")
        before = run(api, api.store.list_sessions())[0]
        api.clock.advance(60)
        with capturedLogs() as events:
            answer = change(api, here)
        assert "account: 'alice' from 127.0.0.1: password changed" in lines_of(events)
        assert (answer.status, answer.header("Location")) == (303, "/account/password?done=changed#done")
        assert answer.header("Set-Cookie") is None
        assert password_of(api) == NEW
        assert [is_signed_in(api, one) for one in (here, there, bob)] == [True, False, True]
        text = ask(api, "GET", "/account/password?done=changed", headers=here).body.decode()
        assert "Your password was changed. Your other sessions have ended." in text
        assert "revoke" not in text
        (after,) = [one for one in run(api, api.store.list_sessions()) if one.username == "alice"]
        assert (after.created, after.ends) == (before.created, before.ends)
        assert after.authenticated == api.clock.seconds()
        assert ask(api, "GET", "/basic", headers=basic()).status == 401
        assert ask(api, "GET", "/basic", headers=basic("alice", NEW)).status == 200
        challenge = ask(api, "GET", "/digest").header("WWW-Authenticate") or ""
        for password, status in ((PASSWORD, 401), (NEW, 200)):
            proof = {"Authorization": digest_value(challenge, "alice", password).encode()}
            assert ask(api, "GET", "/digest", headers=proof).status == status

    def test_another_worker_follows_at_once(self, api: InMemoryApi) -> None:
        here, there = sign_in(api), sign_in(api)
        other = restart(api, api.settings)
        assert is_signed_in(other, here)
        assert log_in_status(other, PASSWORD) == 302  # and caches it
        change(api, here)
        assert is_signed_in(other, here)
        assert not is_signed_in(other, there)
        assert log_in_status(other, PASSWORD) == 401
        assert log_in_status(other, NEW) == 302

    def test_tokens_and_passkeys_stay_and_are_shown(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        add_credentials(api)
        change(api, session)
        text = ask(api, "GET", "/account/password?done=changed", headers=session).body.decode()
        assert 'href="/account/tokens"' in text
        assert 'href="/account/passkeys"' in text
        assert count_credentials(api) == [1, 1]
        api.clock.advance(2)
        assert count_credentials(api) == [1, 1]

    def test_wrong_password_changes_nothing_and_is_counted_as_a_sign_in(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        with capturedLogs() as events:
            answer = change(api, session, {"present": "wrong"})
        assert answer.status == 401
        assert (answer.header("WWW-Authenticate") or "").startswith("Cookie ")
        assert "The present password is wrong." in answer.body.decode()
        assert lines_of(events)[0].startswith("login refused: form 'alice' from 127.0.0.1: wrong password")
        for _ in range(9):
            change(api, session, {"present": "wrong"})
        for fields in ({}, {"present": "wrong"}):
            answer = change(api, session, fields)
            assert (answer.status, answer.header("Retry-After")) == (429, "300")
            assert "Try again in 300 seconds." in answer.body.decode()
        assert log_in_status(api, PASSWORD) == 429
        assert password_of(api) == PASSWORD
        assert is_signed_in(api, session)

    @each(
        "fields, status, why",
        [
            ({"again": "other"}, 422, "The two new passwords are not the same."),
            ({"new": "", "again": ""}, 422, "The new password is empty."),
            ({"new": "x" * 1001, "again": "x" * 1001}, 422, "The new password has more than 1,000 characters."),
            ({"new": "a\0", "again": "a\0"}, 422, "The new password has a control character"),
        ],
    )
    def test_new_password_that_cannot_be_used_is_refused(
        self, api: InMemoryApi, fields: dict[str, str], status: int, why: str
    ) -> None:
        session = sign_in(api)
        answer = change(api, session, fields)
        assert answer.status == status
        assert why in answer.body.decode()
        assert 'aria-describedby="alert"' in answer.body.decode()
        assert password_of(api) == PASSWORD

    @each("fields", [{"present": "wr0ng"}, {"again": "0ther"}, {"new": "a\0", "again": "a\0"}, {}])
    def test_no_page_repeats_a_password(self, api: InMemoryApi, fields: dict[str, str]) -> None:
        answer = change(api, sign_in(api), fields)
        for text in {**FIELDS, **fields}.values():
            assert text not in answer.body.decode()
            assert text not in str(answer.headers)

    def test_programs_get_plain_text(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        wrong = change(api, session, {"present": "wrong"}, Accept="*/*")
        assert (wrong.status, wrong.body) == (401, b"Unauthorized\n")
        assert change(api, session, {"again": "x"}, Accept="*/*").status == 422
        assert change(api, session, Accept="*/*").status == 303

    @each("missing", ["present", "new", "again"])
    def test_missing_field_is_400(self, api: InMemoryApi, missing: str) -> None:
        fields = {name: value for name, value in FIELDS.items() if name != missing}
        assert send(api, "/account/password", sign_in(api), fields).status == 400
        assert password_of(api) == PASSWORD

    @each("fields", CROSS_SITE)
    def test_form_of_another_site_is_403(self, api: InMemoryApi, fields: dict[str, str]) -> None:
        assert change(api, sign_in(api), None, **fields).status == 403
        assert password_of(api) == PASSWORD  # also after the other cases

    def test_change_needs_a_session(self, api: InMemoryApi) -> None:
        assert change(api, {}).status == 401
        assert change(api, basic()).status == 401
        assert ask(api, "GET", "/account/password", headers=basic()).status == 302
        assert password_of(api) == PASSWORD

    def test_password_changed_meanwhile_stays(
        self, api: InMemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file has another password when it is locked, although this process has not loaded that yet."""
        session, file = sign_in(api), tmp_path / "users"
        newer = make_account("alice", "newer", "postd")
        writer = api.logins.context.writer
        assert writer is not None
        write = writer.write

        async def write_late(account: Account, **arguments: Any) -> None:
            file.write_text(f"alice:{newer.password_hash}\n{file.read_text().splitlines()[1]}\n")
            await write(account, **arguments)

        monkeypatch.setattr(writer, "write", write_late)
        answer = change(api, session)
        assert answer.status == 409
        assert "The password was changed in the meantime. Try again in 1 second." in answer.body.decode()
        assert password_of(api) == "newer"
        assert not is_signed_in(api, session)
        api.clock.advance(0)

    def test_file_that_cannot_be_written_is_503(self, api: InMemoryApi, tmp_path: Path) -> None:
        session = sign_in(api)
        (tmp_path / ".users.new").mkdir()
        with capturedLogs() as events:
            answer = change(api, session)
        assert answer.status == 503
        assert "The server cannot write its user file now" in answer.body.decode()
        assert str(tmp_path) not in answer.body.decode()
        assert len(lines_of(events, "error")) == 1
        assert password_of(api) == PASSWORD
        assert is_signed_in(api, session)

    def test_change_goes_on_without_its_client(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        body = urlencode(FIELDS).encode()
        asked = begin(api, "POST", "/account/password", body, {"Content-Type": FORM, **session})
        asked.disconnect()
        api.clock.pump([0] * 20)
        if password_of(api) == NEW:
            assert is_signed_in(api, session)
        assert log_in_status(api, password_of(api)) == 302

    def test_too_many_changes_are_429(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        session, secret = sign_in(api), make_reset(api)
        with monkeypatch.context() as patch:
            patch.setattr("postd.auth.password_change.CHANGES_MAX", 0)
            for answer in (change(api, session), use(api, secret)):
                assert (answer.status, answer.header("Retry-After")) == (429, "300")
                assert "Too many changes of this password. Try again in 300 seconds." in answer.body.decode()
        assert password_of(api) == PASSWORD
        assert use(api, secret).status == 200

    def test_account_of_a_provider_has_no_password_here(self, make: MakeApi) -> None:
        api = make(f"{CHANGE}{PROVIDER}")
        now, provider = api.clock.seconds(), api.logins.context.providers["idp"]
        made = make_session("https://idp.example#alice", provider.fingerprint, now=now, idle_s=900, lifetime_s=900)
        session_id = make_session_id()
        id_hash = hash_session_id(session_id)
        assert id_hash is not None
        run(api, api.store.add_session(id_hash, replace(made, provider="idp", shown_name="alice")))
        session = {"Cookie": f"session={session_id}"}
        text = ask(api, "GET", "/account", headers=session).body.decode()
        assert "Sign out" in text
        assert "/account/password" not in text
        assert ask(api, "GET", "/account/password", headers=session).status == 403
        assert change(api, session).status == 403
        assert password_of(api) == PASSWORD

    def test_setting_turns_it_on(self, make: MakeApi) -> None:
        api = make("")
        session = sign_in(api)
        assert "account/password" not in ask(api, "GET", "/account", headers=session).body.decode()
        assert ask(api, "GET", "/account/password", headers=session).status == 404
        assert change(api, session).status == 404
        assert ask(api, "GET", "/login/reset?secret=x").status == 404
        assert password_of(api) == PASSWORD

    def test_library_changes_passwords_below_its_form(self, make_program: MakeProgram, tmp_path: Path) -> None:
        program = make_program(sign_in="/sign-in", change_password=True)
        program.root.putChild(b"sign-in", program.protection.pages(after="/app"))
        session = log_in(program, "/sign-in/login")
        text = program.get("/sign-in/account/password", session).body.decode()
        assert 'action="/sign-in/account/password"' in text
        assert program.get("/sign-in/login/reset?secret=x").status == 400

    def test_library_needs_a_user_file_that_it_can_write(self, make_program: MakeProgram, tmp_path: Path) -> None:
        for users in (None, InMemoryUsernamePasswordDatabaseDontUse()):
            with pytest.raises(ValueError, match="change_password: users must be the path of a user file"):
                make_program(users=users, change_password=True)
        with capturedLogs() as events:
            make_program(users=tmp_path / "none" / "users", change_password=True)
        assert f"{tmp_path}/none/users: cannot be written: No such file or directory; no password can be changed" in (
            lines_of(events, "warn")
        )


class EntryTests:
    """What belongs to an entry of the user file is deleted with it, beside the sessions of the account."""

    @pytest.mark.parametrize(
        ("line", "left"),
        [
            ("", 0),  # removed
            (user_line("alice", NEW), 0),  # removed and added again, or by htpasswd
            (user_line("alice", NEW).strip() + ":id={entry}\n", 1),
        ],
        ids=["removed", "new", "kept"],
    )
    def test_credentials_end_with_the_entry(self, api: InMemoryApi, tmp_path: Path, line: str, left: int) -> None:
        for name in ("alice", "bob"):
            add_credentials(api, name)
        secret, session = make_reset(api), sign_in(api)
        entry = api.logins.context.users.entry("alice") or b""
        others = "".join((tmp_path / "users").read_text().splitlines(keepends=True)[1:])
        (tmp_path / "users").write_text(line.replace("{entry}", entry.hex()) + others)
        api.clock.advance(1)
        api.clock.advance(0)
        assert count_credentials(api) == [left, left]
        assert count_credentials(api, "bob") == [1, 1]
        assert run(api, api.store.get_password_reset(hash_secret(secret))) is None
        assert not is_signed_in(api, session)


def log_in_status(server: Server, password: str) -> int:
    form = urlencode({"username": "alice", "password": password}).encode()
    return ask(server, "POST", "/login", form, {"Content-Type": FORM}).status


def make_reset(api: InMemoryApi, name: str = "alice") -> str:
    """Store a reset as `postd user reset` does; return its secret."""
    secret, fingerprint = make_secret(), api.logins.context.users.fingerprint(name)
    assert fingerprint is not None
    reset = PasswordReset(name, fingerprint, api.clock.seconds() + LIFETIME_S)
    run(api, api.store.add_password_reset(hash_secret(secret), reset))
    return secret


def show(server: Server, secret: str, method: str = "GET", **headers: str) -> Response:
    return ask(server, method, f"/login/reset?secret={secret}", headers={**BROWSER, **headers})


def use(server: Server, secret: str, fields: Mapping[str, str] | None = None, **headers: str) -> Response:
    form = urlencode({"secret": secret, "new": NEW, "again": NEW, **(fields or {})}).encode()
    return ask(server, "POST", "/login/reset", form, {**BROWSER, "Content-Type": FORM, **headers})


class ResetTests:
    def test_link_sets_a_password_once(self, api: InMemoryApi) -> None:
        secret = make_reset(api)
        for method in ("GET", "HEAD", "GET"):  # as programs for mail do
            shown = show(api, secret, method)
            assert (shown.status, shown.header("Referrer-Policy")) == (200, "no-referrer, strict-origin")
            assert shown.header("Cache-Control") == "no-store"
        text = shown.body.decode()
        assert 'value="alice"' in text
        assert text.count('autocomplete="new-password"') == 2
        answer = use(api, secret)
        assert (answer.status, answer.header("Set-Cookie")) == (200, None)
        assert answer.header("Referrer-Policy") == "no-referrer, strict-origin"
        assert '<a href="/">Sign in</a>' in answer.body.decode()
        assert password_of(api) == NEW
        assert log_in_status(api, NEW) == 302
        assert [show(api, secret).status, use(api, secret, {"new": "newer", "again": "newer"}).status] == [400, 400]
        assert password_of(api) == NEW

    def test_sessions_tokens_and_passkeys_of_the_account_end(self, api: InMemoryApi) -> None:
        alice, bob, other = sign_in(api), sign_in(api, "bob"), restart(api, api.settings)
        for name in ("alice", "bob"):
            add_credentials(api, name)
        users = api.logins.context.users
        entry = users.entry("alice")
        use(api, make_reset(api))
        assert count_credentials(api) == [0, 0]
        assert count_credentials(api, "bob") == [1, 1]
        assert users.entry("alice") != entry  # whatever the store, or a copy of it, still has
        for server in (api, other):
            assert not is_signed_in(server, alice)
            assert is_signed_in(server, bob)
            assert log_in_status(server, PASSWORD) == 401
            assert log_in_status(server, NEW) == 302

    def test_one_of_two_forms_at_once_wins(self, api: InMemoryApi) -> None:
        secret = make_reset(api)
        servers: list[Server] = [api, restart(api, api.settings)]
        forms = [{"secret": secret, "new": text, "again": text} for text in (NEW, "newer")]
        asked = [
            begin(server, "POST", "/login/reset", urlencode(form).encode(), {"Content-Type": FORM})
            for server, form in zip(servers, forms, strict=True)
        ]
        answers = [one.response().status for one in asked]
        assert sorted(answers) == [200, 400]
        assert password_of(api) == (NEW, "newer")[answers.index(200)]

    def test_dead_links_are_alike(self, api: InMemoryApi, tmp_path: Path) -> None:
        used = make_reset(api)
        assert use(api, used).status == 200
        replaced = make_reset(api)
        expired = make_reset(api)
        api.clock.advance(LIFETIME_S)
        answers = {secret: show(api, secret) for secret in (used, replaced, expired, make_secret(), "", "x", "%FF")}
        bodies = {answer.body for answer in answers.values()}
        assert len(bodies) == 1
        assert {answer.status for answer in answers.values()} == {400}
        assert {answer.header("Referrer-Policy") for answer in answers.values()} == {"no-referrer, strict-origin"}
        assert {use(api, secret).body for secret in answers} == bodies
        assert b"This link is not good any more" in bodies.pop()

    @pytest.mark.parametrize("how", ["password", "removed", "again"])
    def test_link_ends_with_the_password_or_the_account(self, api: InMemoryApi, how: str) -> None:
        secret = make_reset(api)
        assert api.users is not None
        lines = api.users.read_text().splitlines(keepends=True)
        if how == "password":
            change(api, sign_in(api))
        else:
            api.users.write_text("".join(lines[1:]))
            if how == "again":
                api.users.write_text("alice:" + make_account("alice", NEW, "postd").password_hash + "\n" + lines[1])
        before = api.users.read_text()
        assert show(api, secret).status == 400
        assert use(api, secret).status == 400
        assert api.users.read_text() == before

    def test_wrong_secrets_are_throttled_by_address(self, make: MakeApi) -> None:
        api = make(f"{CHANGE}\n[throttle]\naddress_failures = 3")
        secret = make_reset(api)
        with capturedLogs() as events:
            assert [show(api, "x").status, use(api, "x").status, show(api, "y").status] == [400, 400, 400]
            for answer in (show(api, secret), use(api, secret)):
                assert (answer.status, answer.header("Retry-After")) == (429, "300")
        lines = lines_of(events)
        assert lines.count("login refused: reset - from 127.0.0.1: unknown link") == 3
        assert lines.count("login refused: reset - from 127.0.0.1: too many failures (address_failures = 3)") == 1
        assert password_of(api) == PASSWORD
        api.clock.advance(300)
        for _ in range(5):
            assert show(api, secret).status == 200
        assert use(api, secret).status == 200

    @each("fields", [{"again": "other"}, {"new": "", "again": ""}, {"new": "x" * 1001, "again": "x" * 1001}])
    def test_password_that_cannot_be_used_uses_nothing_up(self, api: InMemoryApi, fields: dict[str, str]) -> None:
        secret = make_reset(api)
        answer = use(api, secret, fields)
        text = answer.body.decode()
        assert answer.status == 422
        assert f'name="secret" value="{secret}"' in text
        assert 'aria-describedby="alert"' in text
        assert fields["again"] not in text or not fields["again"]
        assert use(api, secret, fields, Accept="*/*").status == 422
        assert use(api, secret).status == 200

    def test_file_that_cannot_be_written_uses_nothing_up(self, api: InMemoryApi, tmp_path: Path) -> None:
        secret = make_reset(api)
        (tmp_path / ".users.new").mkdir()
        answer = use(api, secret)
        assert answer.status == 503
        assert "The server cannot write its user file now" in answer.body.decode()
        (tmp_path / ".users.new").rmdir()
        assert use(api, secret).status == 200

    @each("fields", CROSS_SITE)
    def test_form_of_another_site_is_403(self, api: InMemoryApi, fields: dict[str, str]) -> None:
        secret = make_reset(api)
        before = password_of(api)
        assert use(api, secret, {"new": "newer", "again": "newer"}, **fields).status == 403
        assert password_of(api) == before
        assert use(api, secret).status == 200

    def test_no_log_line_has_the_secret(self, api: InMemoryApi) -> None:
        secret = make_reset(api)
        with recorded_log(api) as events:
            show(api, secret)
            show(api, secret + "x")
            ask(api, "GET", f"/login/reset/{secret}", headers=BROWSER)
            ask(api, "GET", f"/login/resets?secret={secret}", headers={**BROWSER, "Referer": f"/?secret={secret}"})
            ask(api, "PUT", f"/login/reset?secret={secret}")
            use(api, secret)
            use(api, secret)
        check_secret(events, secret, NEW)
        assert "account: 'alice' from 127.0.0.1: password set by a link" in lines_of(events)

    def test_store_has_a_hash_of_the_secret(self, api: InMemoryApi) -> None:
        secret = make_reset(api)
        assert len(secret) == 43
        assert run(api, api.store.get_password_reset(secret.encode())) is None
        assert run(api, api.store.get_password_reset(hash_secret(secret))).account == "alice"
