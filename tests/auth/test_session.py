"""Sessions, without HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from twisted.cred.checkers import ICredentialsChecker
from twisted.internet.defer import Deferred
from zope.interface.verify import verifyObject

from postd.auth.credentials import Refused, SessionCredentials
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
        session = result_of(api.store.get_session(kept))
        changed = replace(session, fingerprint=elsewhere.fingerprint("alice"))
        run(api, api.store.add_session(kept, changed, in_place_of=[kept]))
        assert result_of(sessions.find(kept)) == changed
        assert users.fingerprint("alice") == changed.fingerprint
        assert result_of(sessions.find(other)) is None

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


def started(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


def run(api: InMemoryApi, call: Any) -> Any:
    """Return the result of a call that may have to write."""
    running = started(call)
    api.clock.advance(0)
    return result_of(running)
