"""Session identifiers, expiry and renewal."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.session import RENEWAL_MAX_S, Session, hash_session_id, make_session, make_session_id, renewal
from tests.cases import each

NOW = 1_800_000_000.0
DURATIONS = st.floats(0.001, 1e8)


def begin(now: float = NOW, idle_s: float = 1800, lifetime_s: float = 43200) -> Session:
    return make_session("alice", b"fingerprint", now=now, idle_s=idle_s, lifetime_s=lifetime_s)


class IdTests:
    def test_identifiers_are_unique_and_have_256_bits(self) -> None:
        made = {make_session_id() for _ in range(1000)}
        assert len(made) == 1000
        assert {len(session_id) for session_id in made} == {43}  # 256 bits at 6 a character

    def test_identifier_needs_no_quoting_in_a_cookie(self) -> None:
        for _ in range(100):
            assert make_session_id().replace("-", "").replace("_", "").isalnum()

    def test_hash_is_sha_256(self) -> None:
        session_id = make_session_id()
        assert hash_session_id(session_id) == hashlib.sha256(session_id.encode()).digest()

    @each(
        "text",
        [
            *(
                "",
                "x",
                "A" * 42,
                "A" * 44,
                "A" * 256,
                "A" * 8192,
                '"' + "A" * 41 + '"',
                "A" * 43 + "\n",
                "A" * 42 + "=",
            ),
            *("A" * 42 + "é", "A" * 42 + "\u0661", "A" * 42 + "+", "A" * 42 + "/", "A" * 42 + "\0", " " + "A" * 42),
        ],
    )
    def test_malformed_identifier_has_no_hash(self, text: str) -> None:
        assert hash_session_id(text) is None

    @given(st.text())
    def test_any_text_is_hashed_or_refused(self, text: str) -> None:
        assert hash_session_id(text) in {None, hashlib.sha256(text.encode(errors="replace")).digest()}


class ExpiryTests:
    def test_new_session_has_its_times(self) -> None:
        assert begin() == Session("alice", b"fingerprint", NOW, NOW, NOW + 1800, NOW + 43200)

    def test_expiry_is_never_after_the_end(self) -> None:
        assert begin(idle_s=100, lifetime_s=10).expires == begin(idle_s=100, lifetime_s=10).ends == NOW + 10

    def test_session_is_renewed_once_a_minute(self) -> None:
        session = begin()
        assert renewal(session, now=NOW, idle_s=1800) is None
        assert renewal(session, now=NOW + RENEWAL_MAX_S - 0.1, idle_s=1800) is None
        assert renewal(session, now=NOW + RENEWAL_MAX_S, idle_s=1800) == NOW + RENEWAL_MAX_S + 1800

    def test_session_is_renewed_once_a_tenth_of_a_short_idle_time(self) -> None:
        session = begin(idle_s=10)
        assert renewal(session, now=NOW + 0.9, idle_s=10) is None
        assert renewal(session, now=NOW + 1, idle_s=10) == NOW + 11

    def test_renewal_does_not_change_the_end(self) -> None:
        session = begin()
        assert renewal(session, now=NOW + 43199, idle_s=1800) == session.ends

    def test_changed_settings_apply_from_the_next_use(self) -> None:
        assert renewal(begin(), now=NOW + 60, idle_s=600) == NOW + 660

    @given(idle_s=DURATIONS, lifetime_s=DURATIONS, uses=st.lists(st.floats(0, 1), max_size=20))
    def test_session_used_in_time_lasts_until_its_end(
        self, idle_s: float, lifetime_s: float, uses: list[float]
    ) -> None:
        """With any pauses below nine tenths of `idle`, even if the use before was not stored."""
        session, now = begin(0, idle_s, lifetime_s), 0.0
        for use in uses:
            now += use * idle_s * 0.89
            if now >= session.ends:
                return
            assert now < session.expires <= session.ends
            expires = renewal(session, now=now, idle_s=idle_s)
            if expires is not None:
                session = Session(session.username, session.fingerprint, 0, now, expires, session.ends)
