"""Sign-in by a passkey and registration, without HTTP: what is accepted, and what is refused."""

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from zope.interface.verify import verifyObject

from postd.auth.accounts import Accounts
from postd.auth.credentials import Refused
from postd.auth.passkey import (
    RSA_EXPONENT_MAX,
    IPasskeyCredentials,
    LateAnswerError,
    PasskeyChecker,
    PasskeyCredentials,
    Passkeys,
    Registered,
)
from postd.auth.throttle import Throttle
from postd.errors import TooManyFailuresError
from postd.protocol.passkey import Passkey
from postd.protocol.webauthn import (
    CHALLENGE_S,
    ChallengeError,
    RelyingParty,
    WebAuthnError,
    make_creation_options,
    make_request_options,
)
from postd.reactor import ServiceClock
from postd.store.memory.logins import MemoryLogins
from tests.authenticator import BE, BS, EDDSA, ES256, ES384, RS256, UP, UV, Authenticator
from tests.cases import each
from tests.helpers import result_of

PARTY = RelyingParty("https://posts.example", "posts.example", "postd")
BROWSER, SESSION = b"b" * 43, b"s" * 32
ENTRY = b"e" * 16
ISSUER, PROVIDER_ENTRY = "https://idp.example", b"p" * 16


class Entries:
    """The accounts of a user file."""

    def __init__(self) -> None:
        self.by_name = {"alice": ENTRY, "bob": b"f" * 16}

    def entry(self, name: str) -> bytes | None:
        return self.by_name.get(name)

    fingerprint = entry

    def recheck(self) -> None:
        pass


class OneProvider(Struct):
    id: str = "example"
    url: str = ISSUER
    fingerprint: bytes = PROVIDER_ENTRY


class Service:
    """A checker of passkeys over a store in memory."""

    def __init__(self) -> None:
        reactor: Any = Clock()
        self.store = MemoryLogins(reactor=reactor)
        self.store.prepare()
        result_of(self.store.start())
        self.clock = ServiceClock(reactor)
        self.wall = time.time()
        self.users = Entries()
        providers: Any = {"example": OneProvider()}
        self.passkeys = Passkeys(self.store, self.clock, lambda: self.wall)
        limits = {"failures": 10, "address_failures": 5, "account_failures": 100, "window_s": 300.0}
        throttle = Throttle(self.store, **limits, clock=self.clock)  # type: ignore[arg-type]
        accounts = Accounts(self.users, providers)
        self.checker = PasskeyChecker(self.passkeys, accounts, throttle)

    def creation(self, account: str = "alice", entry: bytes = ENTRY, session: bytes = SESSION) -> dict[str, Any]:
        challenge = result_of(self.passkeys.make_challenge("registration", session))
        handle = result_of(self.passkeys.user_handle(account, entry))
        made: dict[str, Any] = json.loads(
            make_creation_options(PARTY, challenge, handle=handle, name=account, existing=[])
        )
        return made

    def request(self, browser: bytes = BROWSER) -> dict[str, Any]:
        challenge = result_of(self.passkeys.make_challenge("sign-in", browser))
        options: dict[str, Any] = json.loads(make_request_options(PARTY, challenge))
        return options

    def register(self, text: str, session: bytes = SESSION) -> Registered:
        made: Registered = result_of(self.passkeys.register(text, PARTY, session))
        return made

    def add(self, device: Authenticator, account: str = "alice", entry: bytes = ENTRY, **more: Any) -> Passkey:
        """Register a device and store its passkey."""
        made = self.register(device.create(self.creation(account, entry)))
        passkey = Passkey(
            secrets.token_hex(6),
            made.credential_id,
            account,
            entry,
            made.public_key,
            "label",
            self.clock.seconds(),
            sign_count=made.use.sign_count,
            backup_eligible=made.use.backup_eligible,
            backed_up=made.use.backed_up,
            **more,
        )
        assert result_of(self.store.add_passkey(passkey))
        return passkey

    def check(self, text: str, browser: bytes = BROWSER, address: str = "192.0.2.1") -> Any:
        return result_of(self.checker.check(PasskeyCredentials(text, browser, PARTY, address)))


@pytest.fixture
def service() -> Iterator[Service]:
    yield Service()


@pytest.fixture
def device() -> Authenticator:
    return Authenticator(PARTY.origin)


def test_credentials_provide_their_interface() -> None:
    credentials = PasskeyCredentials("secret", BROWSER, PARTY, "192.0.2.1")
    assert verifyObject(IPasskeyCredentials, credentials)
    assert "secret" not in repr(credentials)


@each("algorithm", [ES256, EDDSA, RS256])
def test_passkey_signs_its_owner_in(algorithm: int) -> None:
    service, device = Service(), Authenticator(PARTY.origin, algorithm=algorithm)
    passkey = service.add(device)
    for count in (2, 3):
        user = service.check(device.get(service.request()))
        assert (user.account, user.scheme, user.issuer, user.signed_in) == ("alice", "passkey", "", None)
        stored = result_of(service.store.get_passkey(passkey.credential_id))
        assert (stored.sign_count, stored.used) == (count, service.clock.seconds())


def test_user_of_a_provider_is_signed_in_as_there(service: Service, device: Authenticator) -> None:
    service.add(device, f"{ISSUER}#7", PROVIDER_ENTRY, shown_name="Alice", subject="7")
    user = service.check(device.get(service.request()))
    assert (user.account, user.issuer, user.name, user.shown_name) == (f"{ISSUER}#7", ISSUER, "7", "Alice")
    assert (user.signed_in.provider, user.signed_in.subject, user.signed_in.sid) == ("example", "7", "")
    assert user.signed_in.authenticated == service.clock.seconds()


def test_authenticator_without_a_counter_is_accepted(service: Service) -> None:
    device = Authenticator(PARTY.origin, counts=False)
    service.add(device)
    for _ in range(2):
        assert service.check(device.get(service.request())).account == "alice"


def test_backup_state_is_kept(service: Service) -> None:
    device = Authenticator(PARTY.origin, flags=UP | UV | BE)
    passkey = service.add(device)
    assert (passkey.backup_eligible, passkey.backed_up) == (True, False)
    service.check(device.get(service.request(), flags=UP | UV | BE | BS))
    assert result_of(service.store.get_passkey(passkey.credential_id)).backed_up


def refuse(service: Service, text: str, **more: Any) -> str:
    """Check that an assertion is refused; return the reason in the log, which has nothing of the assertion."""
    with capturedLogs() as events, pytest.raises(Refused) as caught:
        service.check(text, **more)
    (line,) = (formatEvent(event) for event in events)
    assert line.startswith("login refused: passkey ")
    assert len(line) < 300
    assert str(caught.value) in line
    return line


@each(
    "faults, why",
    [
        ({"origin": "https://posts.example:8443"}, "another origin"),
        ({"origin": "https://evil.example"}, "another origin"),
        ({"crossOrigin": True}, "embedded"),
        ({"topOrigin": "https://evil.example"}, "embedded"),
        ({"type": "webauthn.create"}, "not of type"),
        ({"rp_id": "evil.example"}, "RP ID hash"),
        ({"rp_id": "example"}, "RP ID hash"),
        ({"flags": UP}, "User verification"),
        ({"flags": UV}, "not present"),
        ({"flags": UP | UV | BE}, "backup eligibility"),
        ({"flags": UP | UV | BE | BS}, "backup eligibility"),
        ({"flags": UP | UV | BS}, "InvalidBackupFlags"),
        ({"user_handle": None}, "user handle"),
        ({"user_handle": b"h" * 32}, "user handle"),
        ({"signature": b""}, "signature"),
        ({"signature": b"\0" * 70}, "signature"),
        ({"credential_id": b"unknown"}, "no such passkey"),
    ],
)
def test_faulty_assertion_is_refused(faults: dict[str, Any], why: str) -> None:
    service, device = Service(), Authenticator(PARTY.origin)
    passkey = service.add(device)
    assert why in refuse(service, device.get(service.request(), **faults))
    assert result_of(service.store.get_passkey(passkey.credential_id)) == passkey


def test_signature_of_another_passkey_is_refused(service: Service, device: Authenticator) -> None:
    other = Authenticator(PARTY.origin)
    service.add(device)
    service.add(other, "bob", b"f" * 16)
    request = service.request()
    mine = device.get(request, credential_id=other.credential_id, user_handle=other.user_handle)
    assert "'bob'" in refuse(service, mine)
    assert "user handle" in refuse(service, device.get(service.request(), user_handle=other.user_handle))


def test_challenge_is_for_one_use_of_one_browser(service: Service, device: Authenticator) -> None:
    service.add(device)
    used = device.get(service.request())
    service.check(used)
    planted: dict[str, Any] = {"challenge": "A" * 75}
    registration = service.creation()["challenge"]
    for text, browser, why in (
        (used, BROWSER, "used before"),
        (device.get(service.request()), b"c" * 43, "in this browser"),
        (device.get(service.request(), **planted), BROWSER, "in this browser"),
        (device.get(service.request(), challenge=registration), BROWSER, "in this browser"),
        (device.get(service.request(), challenge=registration), SESSION, "in this browser"),
        (device.get(service.request(), challenge=""), BROWSER, "in this browser"),
    ):
        assert why in refuse(service, text, browser=browser)
    late = device.get(service.request())
    service.wall += CHALLENGE_S + 1
    with pytest.raises(LateAnswerError, match="expired"):
        service.check(late)
    assert service.check(device.get(service.request())).account == "alice"


def test_counter_that_goes_back_is_refused_and_logged(service: Service, device: Authenticator) -> None:
    service.add(device)
    device.counter = 7
    service.check(device.get(service.request()))
    for counter in (7, 3, -1):  # the next one is larger by 1
        device.counter = counter - (counter == 7)
        line = refuse(service, device.get(service.request()))
        assert "'alice'" in line
        assert "the signature counter went back: the passkey may have been copied" in line
    device.counter = 8
    assert service.check(device.get(service.request())).account == "alice"


def test_passkey_of_a_removed_account_is_refused(service: Service, device: Authenticator) -> None:
    service.add(device)
    service.users.by_name["alice"] = b"n" * 16  # removed, and added again
    assert "was removed" in refuse(service, device.get(service.request()))
    del service.users.by_name["alice"]
    assert "was removed" in refuse(service, device.get(service.request()))
    service.users.by_name["alice"] = ENTRY
    assert service.check(device.get(service.request())).account == "alice"


def test_refused_assertions_count_for_their_address_and_late_ones_do_not(
    service: Service, device: Authenticator
) -> None:
    service.add(device)
    for _ in range(20):
        refuse(service, device.get(service.request(), challenge="AAAA"))
        refuse(service, "{}")
    for _ in range(5):
        refuse(service, device.get(service.request(), signature=b"wrong"))
    with pytest.raises(TooManyFailuresError):
        service.check(device.get(service.request()))
    assert service.check(device.get(service.request()), address="198.51.100.7").account == "alice"


def test_registration_is_for_one_session_and_one_use(service: Service, device: Authenticator) -> None:
    text = device.create(service.creation())
    with pytest.raises(ChallengeError):
        service.register(text, session=b"t" * 32)
    made = service.register(text)
    assert (made.credential_id, made.use.sign_count) == (device.credential_id, 1)
    with pytest.raises(ChallengeError, match="used before"):
        service.register(text)
    with pytest.raises(ChallengeError):
        service.register(device.create(service.creation() | {"challenge": service.request(SESSION)["challenge"]}))
    late = device.create(service.creation())
    service.wall += CHALLENGE_S + 1
    with pytest.raises(ChallengeError, match="expired"):
        service.register(late)


KEY = Authenticator(PARTY.origin).cose_key()


@each(
    "faults",
    [
        {"flags": UP},
        {"flags": UV},
        {"flags": UP | UV | BS},
        {"rp_id": "evil.example"},
        {"attested_id": b"other"},
        {"attested_id": b""},
        {"key": {1: 2, 3: 0, -1: 1, -2: KEY[-2], -3: KEY[-3]}},
        {"key": {**KEY, 3: ES384}},
        {"key": {**KEY, 3: EDDSA}},
        {"key": {**KEY, 3: RS256}},
        {"key": {**KEY, -1: 2}},
        {"key": {**KEY, -3: bytes(32)}},
        {"key": {**KEY, -2: "text"}},
        {"key": {1: 2, -1: 1, -2: KEY[-2], -3: KEY[-3]}},
        {"key": {1: 1, 3: -8, -1: 6, -2: bytes(31)}},
        {"key": {1: 1, 3: -8, -1: 7, -2: bytes(57)}},
        {"key": {1: 3, 3: RS256, -1: b"\xff" * 2048, -2: b"\1\0\1"}},
        {"key": {1: 3, 3: RS256, -1: b"\xff" * 256, -2: b"\0"}},
        {"key": cbor2.dumps([1, 2, 3])},
        {"key": cbor2.dumps(4)},
        {"key": cbor2.dumps({})},
        {"key": b""},
        {"attestation": b""},
        {"attestation": cbor2.dumps({"fmt": "none", "attStmt": {}})},
        {"attestation": cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": "text"})},
        {"attestation": cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": bytes(37)})},
        {"attestation": cbor2.dumps([])},
        {"extensions": b"\xa0\xa0"},
    ],
)
def test_faulty_registration_is_refused(faults: dict[str, Any]) -> None:
    service = Service()
    with pytest.raises(WebAuthnError):
        service.register(Authenticator(PARTY.origin).create(service.creation(), **faults))


@each("algorithm, rsa_bits", [(ES384, 0), (RS256, 1024)])
def test_other_keys_are_refused(algorithm: int, rsa_bits: int) -> None:
    service = Service()
    device = Authenticator(PARTY.origin, algorithm=algorithm, rsa_bits=rsa_bits)
    with pytest.raises(WebAuthnError):
        service.register(device.create(service.creation()))


def test_rsa_key_that_takes_long_to_verify_is_refused() -> None:
    """With an exponent as long as the modulus, each sign-in would block the reactor for up to 10 ms."""
    service, device = Service(), Authenticator(PARTY.origin, algorithm=RS256)
    for exponent in (RSA_EXPONENT_MAX, RSA_EXPONENT_MAX + 2, (1 << 2047) - 1):
        key = {**device.cose_key(), -2: exponent.to_bytes((exponent.bit_length() + 7) // 8, "big")}
        made = device.create(service.creation(), key=key)
        if exponent == RSA_EXPONENT_MAX:
            assert service.register(made).public_key == cbor2.dumps(key, canonical=True)
        else:
            with pytest.raises(WebAuthnError, match="takes long to verify"):
                service.register(made)


@each(
    "fmt, statement",
    [
        ("packed", {"alg": -7, "sig": b"wrong"}),
        ("packed", {"alg": -7, "sig": b"wrong", "x5c": [b"no certificate"]}),
        ("fido-u2f", {"sig": b"wrong", "x5c": [b"no certificate"]}),
        ("tpm", {}),
        ("unheard-of", {"ver": {"deep": [1]}}),
    ],
)
def test_attestation_is_ignored(fmt: str, statement: dict[str, object]) -> None:
    service, device = Service(), Authenticator(PARTY.origin)
    made = service.register(device.create(service.creation(), fmt=fmt, statement=statement))
    assert made.credential_id == device.credential_id


def test_extensions_are_accepted(service: Service, device: Authenticator) -> None:
    extensions = cbor2.dumps({"credProtect": 2})
    assert service.register(device.create(service.creation(), extensions=extensions)).use.sign_count == 1


@each("odd", [b"\xc1\x01", b"\x81" * 5 + b"\1", b"\x99\x01\x00" + bytes(20)])
def test_cbor_that_authenticators_do_not_send_is_refused(odd: bytes) -> None:
    service, device = Service(), Authenticator(PARTY.origin)
    service.add(device)
    data = hashlib.sha256(b"posts.example").digest() + bytes([UP | UV | 64]) + bytes(4) + bytes(18)
    with pytest.raises(Refused):
        service.check(device.get(service.request(), data=data + odd))
    with pytest.raises(Refused):
        extended = data[:32] + bytes([UP | UV | 128]) + bytes(4)
        service.check(device.get(service.request(), data=extended + odd))
    for faults in ({"key": odd}, {"extensions": odd}, {"attestation": odd}):
        with pytest.raises(WebAuthnError):
            service.register(device.create(service.creation(), **faults))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=100))
def test_arbitrary_authenticator_data_are_refused(data: bytes, signature: bytes) -> None:
    service, device = FUZZED
    for signed in (data, hashlib.sha256(b"posts.example").digest() + data):
        with pytest.raises((Refused, TooManyFailuresError)):
            service.check(device.get(service.request(), data=signed, signature=signature), address=repr(data))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(-4, 4), st.integers() | st.binary(max_size=70) | st.text(max_size=9), max_size=6))
def test_arbitrary_keys_are_refused(key: dict[int, object]) -> None:
    service, _ = FUZZED
    device = Authenticator(PARTY.origin)
    for made in (key, {**KEY, **key}):
        try:
            registered = service.register(device.create(service.creation(), key=made or {0: 0}))
        except WebAuthnError:
            continue
        assert cbor2.loads(registered.public_key) == made
        assert {name: value for name, value in made.items() if name in KEY} == KEY


FUZZED = Service(), Authenticator(PARTY.origin)
FUZZED[0].add(FUZZED[1])
