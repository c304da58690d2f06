"""Sessions, without HTTP."""

from collections.abc import Iterator
from pathlib import Path
from sys import getsizeof
from typing import Any

import pytest
from msgspec.structs import replace
from twisted.cred.checkers import ICredentialsChecker
from twisted.internet.defer import Deferred
from zope.interface.verify import verifyObject

from postd.auth.credentials import Refused, SessionCredentials
from postd.auth.identity import SignedIn
from postd.auth.session import SessionChecker, Sessions
from postd.auth.users import UserDirectory
from postd.errors import StoreUnavailableError
from postd.protocol.session import hash_session_id
from tests.auth.helpers import refusing_writes
from tests.helpers import InMemoryApi, result_of
from tests.web.wire import user_line

IDLE_S, LIFETIME_S = 1800, 7200


class SessionsTests:
    @pytest.fixture
    def api(self) -> Iterator[InMemoryApi]:
        """Used for its store and its clock only; nothing is purged."""
        api = InMemoryApi()
        api.logins.stop()
        yield api
        result_of(api.store.stop())

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "users"
        file.write_text(user_line("alice", "secret") + user_line("bob", "p:w"))
        return file

    @pytest.fixture
    def users(self, file: Path) -> UserDirectory:
        users = UserDirectory(str(file))
        users.load()
        return users

    @pytest.fixture
    def sessions(self, api: InMemoryApi, users: UserDirectory) -> Sessions:
        return Sessions(api.store, users, idle_s=IDLE_S, lifetime_s=LIFETIME_S, now=api.clock.seconds)

    def begin(self, api: InMemoryApi, sessions: Sessions, name: str = "alice", old: tuple[bytes, ...] = ()) -> bytes:
        """Begin a session; return the hash of its identifier."""
        id_hash = hash_session_id(run(api, sessions.begin(name, in_place_of=old)))
        assert id_hash is not None
        return id_hash

    def test_session_belongs_to_its_user(self, api: InMemoryApi, sessions: Sessions) -> None:
        alice, bob = self.begin(api, sessions), self.begin(api, sessions, "bob")
        assert result_of(sessions.use(alice)).username == "alice"
        assert result_of(sessions.use(bob)).username == "bob"
        assert result_of(sessions.use(bytes(32))) is None

    def test_unused_session_expires_to_the_second(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        api.clock.rightNow += IDLE_S
        assert result_of(sessions.use(id_hash)) is None
        api.clock.rightNow -= 0.001
        assert run(api, sessions.use(id_hash)).username == "alice"

    def test_used_session_ends_to_the_second(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        for _ in range(LIFETIME_S // 60 - 1):
            api.clock.rightNow += 60
            assert run(api, sessions.use(id_hash)).username == "alice"
        api.clock.rightNow += 59.9
        assert run(api, sessions.use(id_hash)).username == "alice"
        api.clock.rightNow += 0.1
        assert result_of(sessions.use(id_hash)) is None

    def test_expired_session_is_not_renewed(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        before = result_of(api.store.get_session(id_hash))
        api.clock.rightNow += IDLE_S
        assert run(api, sessions.use(id_hash)) is None
        assert result_of(api.store.get_session(id_hash)) == before

    def test_changed_password_ends_the_session(
        self, api: InMemoryApi, sessions: Sessions, users: UserDirectory, file: Path
    ) -> None:
        alice, bob = self.begin(api, sessions), self.begin(api, sessions, "bob")
        file.write_text(user_line("alice", "other") + user_line("bob", "p:w"))
        assert users.refresh()
        assert result_of(sessions.use(alice)) is None
        assert result_of(sessions.use(bob)).username == "bob"

    def test_session_stored_with_a_new_fingerprint_lives_in_a_worker_that_has_not_reloaded_yet(
        self, api: InMemoryApi, sessions: Sessions, users: UserDirectory, file: Path
    ) -> None:
        kept, other = self.begin(api, sessions), self.begin(api, sessions)
        file.write_text(user_line("alice", "other"))
        elsewhere = UserDirectory(str(file))
        elsewhere.load()
        changed = replace(result_of(api.store.get_session(kept)), fingerprint=elsewhere.fingerprint("alice"))
        run(api, sessions.confirm(kept, changed.fingerprint))
        assert result_of(sessions.find(kept)) == changed
        assert users.fingerprint("alice") == changed.fingerprint
        assert result_of(sessions.find(other)) is None

    def test_stream_goes_on_with_a_session_that_was_renewed_since_it_was_cached(
        self, api: InMemoryApi, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        id_hash = self.begin(api, sessions)
        cached = result_of(api.store.get_session(id_hash))

        async def get_cached(_: bytes) -> Any:
            return cached

        monkeypatch.setattr(api.store, "get_cached_session", get_cached)
        api.clock.rightNow += IDLE_S - 1
        run(api, sessions.use(id_hash))
        api.clock.rightNow += IDLE_S - 1
        assert result_of(sessions.may_stream([id_hash], b""))
        api.clock.rightNow += 1
        assert not result_of(sessions.may_stream([id_hash], b""))

    def test_removed_user_gets_no_session(
        self, api: InMemoryApi, sessions: Sessions, users: UserDirectory, file: Path
    ) -> None:
        file.write_text(user_line("bob", "p:w"))
        users.refresh()
        with pytest.raises(Refused):
            run(api, sessions.begin("alice", in_place_of=()))
        assert result_of(api.store.list_sessions()) == []

    def test_replaced_sessions_end(self, api: InMemoryApi, sessions: Sessions) -> None:
        one, two, three = (self.begin(api, sessions) for _ in range(3))
        new = self.begin(api, sessions, old=(one, two, bytes(32)))
        assert [run(api, sessions.use(old)) is not None for old in (one, two, three, new)] == [False, False, True, True]

    def test_session_can_be_ended_twice(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        for _ in range(2):
            run(api, sessions.end([id_hash]))
            assert result_of(sessions.use(id_hash)) is None

    def test_session_has_the_circumstances_of_its_sign_in(self, api: InMemoryApi, sessions: Sessions) -> None:
        begun: dict[str, Any] = {"address": "192.0.2.1", "browser": "Firefox on Linux", "scheme": "form"}
        id_hash = hash_session_id(run(api, sessions.begin("alice", in_place_of=(), **begun)))
        assert id_hash is not None
        found = result_of(sessions.find(id_hash))
        assert {name: getattr(found, name) for name in begun} == begun
        assert found.authenticated == found.created == api.START_S

    def test_time_of_authentication_is_that_of_the_provider(self, api: InMemoryApi, users: UserDirectory) -> None:
        now, at = api.START_S, {"idp": b"p"}
        sessions = Sessions(api.store, users, idle_s=60, lifetime_s=60, now=api.clock.seconds, providers=at)
        for told, kept in ((0.0, 0.0), (now - 5000, now - 5000), (now + 5, now)):
            signed_in = SignedIn("idp", "Alice", "1", "", authenticated=told)
            id_hash = hash_session_id(run(api, sessions.begin("i#1", in_place_of=(), signed_in=signed_in)))
            assert id_hash is not None
            assert result_of(sessions.find(id_hash)).authenticated == kept

    def test_confirmed_session_keeps_all_else(self, api: InMemoryApi, users: UserDirectory) -> None:
        sessions = Sessions(api.store, users, idle_s=60, lifetime_s=60, now=api.clock.seconds, providers={"idp": b"p"})
        signed_in = SignedIn("idp", "Alice", "1", "sid", id_token="e.y.J")
        id_hash = hash_session_id(run(api, sessions.begin("i#1", in_place_of=(), signed_in=signed_in)))
        assert id_hash is not None
        before = result_of(sessions.find(id_hash))
        api.clock.rightNow += 30
        confirming = started(sessions.confirm(id_hash))
        api.clock.advance(0)
        result_of(confirming)
        assert result_of(sessions.find(id_hash)) == replace(before, authenticated=api.START_S + 30)
        assert result_of(sessions.id_token_of(id_hash)) == "e.y.J"

    def test_session_ended_during_confirmation_stays_ended(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        ending, confirming = started(sessions.end([id_hash])), started(sessions.confirm(id_hash))
        api.clock.advance(0)
        result_of(ending)
        result_of(confirming)
        assert result_of(api.store.list_sessions()) == []

    def test_live_sessions_of_a_user_are_listed(
        self, api: InMemoryApi, sessions: Sessions, file: Path, users: UserDirectory
    ) -> None:
        self.begin(api, sessions)
        api.clock.rightNow += 1000
        live = [self.begin(api, sessions), self.begin(api, sessions)]
        self.begin(api, sessions, "bob")
        api.clock.rightNow += 1000
        assert result_of(sessions.list_of("alice")).keys() == set(live)
        file.write_text(user_line("alice", "another"))
        users.refresh()
        assert result_of(sessions.list_of("alice")) == {}

    def test_session_ended_during_renewal_stays_ended(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        api.clock.rightNow += 100
        ending, using = started(sessions.end([id_hash])), started(sessions.use(id_hash))
        api.clock.advance(0)
        assert result_of(using).username == "alice"
        result_of(ending)
        assert result_of(api.store.list_sessions()) == []

    def test_session_that_cannot_be_renewed_is_accepted(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        api.clock.rightNow += 100
        with refusing_writes(api.store):
            assert result_of(sessions.use(id_hash)).username == "alice"
            for call in (sessions.end([id_hash]), sessions.begin("alice", in_place_of=())):
                with pytest.raises(StoreUnavailableError):
                    run(api, call)

    def test_checker_accepts_exactly_one_live_session(self, api: InMemoryApi, sessions: Sessions) -> None:
        checker = SessionChecker(sessions)
        verifyObject(ICredentialsChecker, checker)
        alice, bob = self.begin(api, sessions), self.begin(api, sessions, "bob")
        for id_hashes, name in (((alice,), b"alice"), ((bytes(32), bob), b"bob")):
            assert result_of(checker.requestAvatarId(SessionCredentials(id_hashes))) == name
        refused: list[tuple[bytes, ...]] = [(), (bytes(32),), (alice, bob), (bytes(32), bob, alice)]
        for shown in refused:
            with pytest.raises(Refused):
                result_of(checker.requestAvatarId(SessionCredentials(shown)))

    def test_what_checks_a_stream_again_has_no_copy_of_the_cookies(self, api: InMemoryApi, sessions: Sessions) -> None:
        id_hash = self.begin(api, sessions)
        identity = result_of(SessionChecker(sessions).check(SessionCredentials((id_hash,), bytes(9000))))
        assert sum(map(getsizeof, identity.revalidate.args)) < 1000
        assert result_of(identity.revalidate())


def started(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


def run(api: InMemoryApi, call: Any) -> Any:
    """Return the result of a call that may have to write."""
    running = started(call)
    api.clock.advance(0)
    return result_of(running)
