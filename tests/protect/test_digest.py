"""Digest over HTTP, for every algorithm and offer (reference: Digest)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, structs
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.logger import LogLevel, eventAsText

from postd.daemon.schemes import make_authentication
from postd.daemon.server import make_tree
from postd.reactor import ServiceClock
from postd.settings.loading import LoadedSettings
from tests.cases import each
from tests.helpers import InlineHashThreads, InMemoryApi, MemoryTransport, Response, connect, forget_own, make_site
from tests.web.clients import (
    HASHES,
    PASSWORD,
    Proof,
    account,
    ask_raw,
    challenges_in,
    check_secret,
    h,
    recorded_log,
)
from tests.web.test_posts import check_problem
from tests.web.wire import ask

USERS = (
    account("alice")
    + account("bob")
    + account('al"i\\ce')
    + account("jürgen")
    + account("100%C3%BC")
    + account("ü" * 127)
    + account("md5", algorithms=["MD5"])
    + account("sha", algorithms=["SHA-256"])
    + account("elsewhere", realm="other")
    + account("htpasswd", algorithms=[])
)
JSON = {"Content-Type": "application/json"}

MakeApi = Callable[..., InMemoryApi]


class Server:
    """A server, and a client that uses one of the offered algorithms."""

    def __init__(self, folder: Path, offered: list[str], algorithm: str) -> None:
        self.offered = offered
        self.algorithm = algorithm
        rules = f'[digest]\nalgorithms = {offered}\n[api]\nwrite = ["digest"]\n'
        (folder / "users").write_text(USERS)
        self.api = InMemoryApi(folder, rules)

    def get(self, headers: dict[str, Any] | None = None, path: str = "/digest", method: str = "GET") -> Response:
        return ask(self.api, method, path, headers=headers)

    def nonce(self) -> str:
        return challenges_in(self.get())[0].nonce

    def proof(self, **parts: str) -> Proof:
        """Make a proof with a new nonce."""
        return Proof(**{"nonce": self.nonce(), "algorithm": self.algorithm, **parts})

    def check_refused(self, answer: Response, *, stale: bool = False) -> None:
        assert (answer.status, answer.body) == (401, b"Unauthorized\n")
        found = challenges_in(answer)
        assert [challenge.algorithm for challenge in found] == self.offered
        assert len(answer.headers["www-authenticate"]) == len(self.offered)
        assert {challenge.stale for challenge in found} == {stale}
        assert {challenge.realm for challenge in found} == {"postd"}
        assert "authentication-info" not in answer.headers
        # A client can retry with the new nonce.
        again = Proof(nonce=found[0].nonce, algorithm=self.algorithm)
        check_authenticated(self.get(again.headers()), again)


def check_authenticated(answer: Response, proof: Proof) -> None:
    assert (answer.status, answer.body) == (200, f"Success: {proof.username}\n".encode())
    assert answer.header("Authentication-Info") == proof.info
    assert "www-authenticate" not in answer.headers


OFFERS = {
    f"{'+'.join(offered)}:{algorithm}": (offered, algorithm)
    for offered, algorithm in (
        *((["MD5"], "MD5"), (["SHA-256", "MD5"], "SHA-256")),
        *((["SHA-256", "MD5"], "MD5"), (["SHA-256"], "SHA-256")),
    )
}
"""The algorithms that a server offers, and the one that the client uses."""


@pytest.fixture(params=OFFERS.values(), ids=list(OFFERS))
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path, *request.param)
    yield server
    server.api.close()


@pytest.fixture(scope="module", params=OFFERS.values(), ids=list(OFFERS))
def shared_server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("digest"), *request.param)
    yield server
    server.api.close()


@pytest.fixture
def md5(tmp_path: Path) -> Iterator[Server]:
    """The server with its default settings."""
    server = Server(tmp_path, ["MD5"], "MD5")
    yield server
    server.api.close()


class ChallengeTests:
    def test_challenge_has_one_field_line_per_algorithm(self, server: Server) -> None:
        answer = server.get()
        lines = answer.headers["www-authenticate"]
        nonces = [challenge.nonce for challenge in challenges_in(answer)]
        assert lines == [
            f'Digest realm="postd", qop="auth", algorithm={algorithm}, nonce="{nonce}"'
            for algorithm, nonce in zip(server.offered, nonces, strict=True)
        ]

    def test_each_challenge_has_a_new_nonce(self, md5: Server) -> None:
        assert len({md5.nonce() for _ in range(20)}) == 20

    def test_default_algorithm_is_md5(self, make: MakeApi) -> None:
        api = make("")
        assert [challenge.algorithm for challenge in challenges_in(ask(api, "GET", "/digest"))] == ["MD5"]

    def test_repeated_algorithm_is_offered_once(self, make: MakeApi) -> None:
        api = make('[digest]\nalgorithms = ["MD5", "SHA-256", "MD5"]')
        assert [challenge.algorithm for challenge in challenges_in(ask(api, "GET", "/digest"))] == ["MD5", "SHA-256"]

    @pytest.mark.parametrize("realm", ["The posts of 'x', all: a=b", "http-auth@example.org"])
    def test_realm_with_special_characters_is_accepted(self, make: MakeApi, realm: str) -> None:
        api = make(f"realm = {json.dumps(realm)}", users=account("alice", realm=realm))
        challenge = challenges_in(ask(api, "GET", "/digest"))[0]
        assert challenge.realm == realm
        proof = Proof(nonce=challenge.nonce, realm=realm)
        check_authenticated(ask(api, "GET", "/digest", headers=proof.headers()), proof)

    @each("realm", ["", 'a"b', "a\\b", "bücher", "a\nb"])
    def test_realm_that_clients_misread_is_a_settings_error(self, make: MakeApi, realm: str) -> None:
        """Realm that clients misread is a settings error (reference: Digest, D30)."""
        with pytest.raises(ValidationError, match="is not a realm"):
            make(f"realm = {json.dumps(realm)}")


class SuccessTests:
    def test_correct_response_is_accepted(self, server: Server) -> None:
        """Correct response is accepted (reference: Digest, D1)."""
        proof = server.proof()
        check_authenticated(server.get(proof.headers()), proof)

    def test_authentication_info_is_sent_with_every_status(self, server: Server) -> None:
        """Authentication info is sent with every status (reference: Digest, D2)."""
        for method, path, status in (
            ("HEAD", "/digest", 200),
            ("GET", "/digest/below", 404),
            ("HEAD", "/digest/below", 404),
            ("GET", "/digest/", 404),
            ("POST", "/digest", 405),
            ("DELETE", "/digest", 405),
            ("FOO", "/digest", 405),
            ("POST", "/post/1", 405),
            ("PUT", "/post/99", 404),
            ("POST", "/post", 201),
            ("POST", "/post", 201),
        ):
            proof = server.proof(method=method, uri=path)
            answer = ask(server.api, method, path, b'{"post":"x"}', {**JSON, **proof.headers()})
            assert answer.status == status
            assert answer.header("Authentication-Info") == proof.info
            assert "www-authenticate" not in answer.headers
            if method == "HEAD":
                assert answer.body == b""

    def test_authentication_info_is_sent_with_a_body_error(self, md5: Server) -> None:
        for body, status in ((b"{", 400), (b"{}", 422)):
            proof = md5.proof(method="POST", uri="/post")
            answer = ask(md5.api, "POST", "/post", body, {**JSON, **proof.headers()})
            assert (answer.status, answer.header("Authentication-Info")) == (status, proof.info)

    def test_missing_algorithm_is_md5(self, server: Server) -> None:
        """Missing algorithm is MD5 (reference: Digest, D3)."""
        proof = server.proof(algorithm="MD5")
        answer = server.get(proof.headers(algorithm=None))
        if "MD5" in server.offered:
            check_authenticated(answer, proof)
        else:
            server.check_refused(answer)

    def test_spelling_variants_of_the_field_are_accepted(self, server: Server) -> None:
        """White space after the scheme is accepted (reference: Schemes, G5, G6; Digest, D5, D22, D29)."""
        for change in (
            lambda field: field.replace(b"qop=auth", b'qop="auth"').replace(b"nc=00000001", b'nc="00000001"'),
            lambda field: (
                field.replace(b"algorithm=", b'algorithm="') + b'"' if field.endswith((b"MD5", b"256")) else field
            ),
            lambda field: field.replace(b"algorithm=SHA", b"algorithm=sha").replace(b"algorithm=MD5", b"algorithm=md5"),
            lambda field: field.replace(b"qop=auth", b"qop=AUTH"),
            lambda field: field.replace(b"=", b" = "),
            lambda field: field.replace(b"=", b"\t=\t"),
            lambda field: field.replace(b", ", b","),
            lambda field: field.replace(b", ", b" ,, ,\t"),
            lambda field: field.replace(b"username", b"Username").replace(b"nonce", b"NONCE"),
            lambda field: field.replace(b"Digest ", b"DIGEST "),
            lambda field: field.replace(b"Digest ", b"digest    "),
            lambda field: field.replace(b"Digest ", b"Digest\t"),
            lambda field: field.replace(b"Digest ", b"Digest ,"),
            lambda field: field + b', opaque="x", charset=UTF-8, userhash=false, more="or, less"',
        ):
            proof = server.proof()
            check_authenticated(server.get({"Authorization": change(proof.headers()["Authorization"])}), proof)

    def test_hexadecimal_digits_may_be_upper_case(self, server: Server) -> None:
        proof = server.proof(nc="0000000A")
        response = f'"{proof.hash("GET").upper()}"'
        check_authenticated(server.get(proof.headers(response=response)), proof)

    @each("cnonce", ["x", "", "a, b=c; d", "c\tc", "kö", 'a"b\\c', "\udcff", "=" * 1000, "%0d%0aX: y"])
    def test_cnonce_is_echoed(self, md5: Server, cnonce: str) -> None:
        proof = md5.proof(cnonce=cnonce)
        answer = md5.get(proof.headers())
        assert answer.status == 200
        quoted = cnonce.replace("\\", r"\\").replace('"', r"\"").encode(errors="surrogateescape").decode("latin-1")
        assert (answer.header("Authentication-Info") or "").endswith(f', cnonce="{quoted}", nc=00000001')

    def test_body_sent_after_the_challenge_is_processed(self, server: Server) -> None:
        """Curl sends the first request without its body (reference: Digest, D31)."""
        first = ask(server.api, "POST", "/post", b"", JSON)
        assert first.status == 401
        proof = server.proof(method="POST", uri="/post")
        answer = ask(server.api, "POST", "/post", b'{"post":"with body"}', {**JSON, **proof.headers()})
        assert (answer.status, answer.body) == (201, b"Success a Post!\n")
        assert json.loads(ask(server.api, "GET", "/post").body) == [{"id": 1, "post": "with body"}]


class UsernameTests:
    @each("username", ['al"i\\ce', "jürgen"])
    def test_name_with_quoted_pairs_or_utf_8_is_accepted(self, server: Server, username: str) -> None:
        """Name with quoted pairs or UTF-8 is accepted (reference: Digest, D21, D26)."""
        proof = server.proof(username=username)
        check_authenticated(server.get(proof.headers()), proof)

    def test_name_sent_without_escapes_is_another_name(self, md5: Server) -> None:
        """As requests, httpx and wget send it."""
        md5.check_refused(md5.get(md5.proof(username='al"i\\ce').headers(username='"al\\i\\ce"')))

    def test_username_star_parameter_in_utf_8_is_decoded(self, server: Server) -> None:
        """Username star parameter in UTF-8 is decoded (reference: Digest, D25)."""
        proof = server.proof(username="jürgen")
        extended = {"username": None, "username*": "UTF-8''j%C3%BCrgen"}
        check_authenticated(server.get(proof.headers(**extended)), proof)
        server.check_refused(server.get(server.proof(username="jürgen").headers(**{"username*": "UTF-8''j%C3%BCrgen"})))
        latin = {"username": None, "username*": "ISO-8859-1''j%FCrgen"}
        server.check_refused(server.get(server.proof(username="jürgen").headers(**latin)))

    @each("encoded", ["j%C3%BCrgen", "j%c3%bcrgen"])
    def test_name_percent_encoded_by_curl_is_decoded(self, server: Server, encoded: str) -> None:
        proof = server.proof(username="jürgen")
        check_authenticated(server.get(proof.headers(username=f'"{encoded}"')), proof)

    def test_encoded_name_may_be_as_long_as_a_plain_one(self, server: Server) -> None:
        proof = server.proof(username="ü" * 127)
        check_authenticated(server.get(proof.headers(username=f'"{"%C3%BC" * 127}"')), proof)

    @pytest.mark.parametrize("times", [128, 1000])
    def test_encoded_name_over_the_limit_is_refused(self, md5: Server, times: int) -> None:
        with recorded_log(md5.api) as events:
            md5.check_refused(md5.get(md5.proof(username="x").headers(username=f'"{"%C3%BC" * times}"')))
        assert any("longer than any name" in eventAsText(event) for event in events)

    def test_existing_name_with_a_percent_sign_is_not_decoded(self, server: Server) -> None:
        proof = server.proof(username="100%C3%BC")
        check_authenticated(server.get(proof.headers()), proof)

    @each("encoded", ["%6aürgen", "j%25C3%25BCrgen"])
    def test_other_escapes_are_not_decoded(self, server: Server, encoded: str) -> None:
        server.check_refused(server.get(server.proof(username="jürgen").headers(username=f'"{encoded}"')))

    @each("sent", ["j\udcfcrgen", "j%FCrgen"])
    def test_name_in_latin_1_is_the_same_name(self, server: Server, sent: str) -> None:
        """The hash is over UTF-8 (requests, niquests, npm libraries)."""
        proof = server.proof(username="jürgen")
        check_authenticated(server.get(proof.headers(username=f'"{sent}"')), proof)

    def test_name_in_latin_1_and_in_utf_8_is_one_account_for_the_throttle(self, md5: Server) -> None:
        wrong = [{}, {"username": '"j\udcfcrgen"'}] * 5
        for sent in wrong:
            assert md5.get(md5.proof(username="jürgen", password="wrong").headers(**sent)).status == 401
        for sent in wrong[:2]:
            assert md5.get(md5.proof(username="jürgen").headers(**sent)).status == 429

    def test_unknown_user_gets_the_same_response_as_a_wrong_password(self, server: Server) -> None:
        """The same bytes, except for nonce, date and request id; without `stale` (reference: Digest, D28)."""
        seen = set()
        for username, password in (
            *(("alice", "wrong"), ("unknown", PASSWORD), ("htpasswd", PASSWORD), ("elsewhere", PASSWORD)),
            *(("", PASSWORD), ("ALICE", PASSWORD), ("alice ", PASSWORD), ("x" * 5000, PASSWORD), ("\udcff", "")),
        ):
            for nonce in (server.nonce(), "forged"):
                answer = server.get(server.proof(username=username, password=password, nonce=nonce).headers())
                assert answer.status == 401
                for challenge in challenges_in(answer):
                    answer = structs.replace(
                        answer, headers=json.loads(json.dumps(answer.headers).replace(challenge.nonce, ""))
                    )
                forget_own(answer)
                seen.add((answer.status, json.dumps(answer.headers), answer.body))
        assert len(seen) == 1
        server.check_refused(server.get())

    def test_user_without_a_hash_for_the_algorithm_is_refused(self, tmp_path: Path) -> None:
        server = Server(tmp_path, ["SHA-256", "MD5"], "MD5")
        for username, algorithm, accepted in (
            *(("md5", "MD5", True), ("md5", "SHA-256", False), ("sha", "SHA-256", True), ("sha", "MD5", False)),
            *(("htpasswd", "MD5", False), ("htpasswd", "SHA-256", False)),
            *(("elsewhere", "MD5", False), ("elsewhere", "SHA-256", False)),
        ):
            proof = server.proof(username=username, algorithm=algorithm)
            answer = server.get(proof.headers())
            if accepted:
                check_authenticated(answer, proof)
            else:
                server.check_refused(answer)
        server.api.close()

    def test_user_with_a_hash_for_another_realm_is_refused(self, server: Server) -> None:
        for realm in ("postd", "other"):
            server.check_refused(server.get(server.proof(username="elsewhere", realm=realm).headers()))

    def test_changed_password_is_loaded_from_the_user_file(self, md5: Server) -> None:
        users = md5.api.users
        assert users is not None
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)
        line = account("alice").replace(h("MD5", f"alice:postd:{PASSWORD}"), h("MD5", "alice:postd:new"))
        users.write_text(line)
        md5.api.clock.advance(2)
        assert md5.get(md5.proof().headers()).status == 401
        proof = md5.proof(password="new")
        check_authenticated(md5.get(proof.headers()), proof)

    def test_user_removed_from_the_user_file_is_refused(self, md5: Server) -> None:
        users = md5.api.users
        assert users is not None
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)
        users.write_text(account("md5"))
        md5.api.clock.advance(2)
        assert md5.get(md5.proof().headers()).status == 401


class RefusalTests:
    @pytest.mark.parametrize(
        "parts",
        [
            {"password": "wrong"},
            {"password": ""},
            {"method": "POST"},
            {"method": ""},
            {"realm": "other"},
            {"realm": ""},
        ],
    )
    def test_response_for_another_password_method_or_realm_is_refused(
        self, server: Server, parts: dict[str, str]
    ) -> None:
        """Including a wrong password (reference: Digest, D8, D9)."""
        server.check_refused(server.get(server.proof(**parts).headers()))

    @each("name", ["username", "realm", "nonce", "uri", "response", "nc", "cnonce", "qop"])
    def test_missing_parameter_is_refused(self, server: Server, name: str) -> None:
        """Missing parameter is refused (reference: Digest, D10)."""
        server.check_refused(server.get(server.proof().headers(**{name: None})))

    @each("name", ["realm", "nonce", "response", "nc", "cnonce", "username"])
    def test_parameter_other_than_hashed_is_refused(self, server: Server, name: str) -> None:
        for value in ('"x"', '""', "00000002", '"' + "0" * 64 + '"', '"' + "0" * 32 + '"'):
            server.check_refused(server.get(server.proof().headers(**{name: value})))

    def test_algorithm_that_is_not_offered_is_refused(self, server: Server) -> None:
        """Algorithm that is not offered is refused (reference: Digest, D4)."""
        for algorithm in ("SHA", "foo", "MD5-sess", "SHA-256-sess", "SHA-512-256", '""'):
            server.check_refused(server.get(server.proof().headers(algorithm=algorithm)))
        for algorithm in HASHES.keys() - set(server.offered):
            server.check_refused(server.get(server.proof(algorithm=algorithm).headers()))

    def test_hash_of_another_offered_algorithm_than_named_is_accepted(self, server: Server) -> None:
        """As by lftp, svn and Ruby's httpclient, which hash with MD5 and name SHA-256."""
        for algorithm in HASHES.keys() - {server.algorithm}:
            proof = server.proof()
            answer = server.get(proof.headers(algorithm=algorithm))
            if algorithm in server.offered:
                check_authenticated(answer, proof)
            else:
                server.check_refused(answer)

    def test_hash_of_an_algorithm_that_is_not_offered_is_malformed(self, tmp_path: Path) -> None:
        server = Server(tmp_path, ["SHA-256"], "SHA-256")
        with recorded_log(server.api) as events:
            for _ in range(15):
                server.get(server.proof(algorithm="MD5").headers(algorithm="SHA-256"))
        assert {(event["user"], event["why"]) for event in events if "why" in event} == {
            ("'alice'", "malformed: a hash of MD5 with algorithm=SHA-256")
        }
        proof = server.proof()
        check_authenticated(server.get(proof.headers()), proof)
        server.api.close()

    def test_rfc_2069_response_is_refused(self, server: Server) -> None:
        """RFC 2069 response is refused (reference: Digest, D11)."""
        proof = server.proof()
        ha1, ha2 = (h(server.algorithm, text) for text in (f"alice:postd:{PASSWORD}", "GET:/digest"))
        response = f'"{h(server.algorithm, f"{ha1}:{proof.nonce}:{ha2}")}"'
        server.check_refused(server.get(proof.headers(response=response, qop=None, nc=None, cnonce=None)))
        server.check_refused(server.get(proof.headers(response=response, qop=None)))
        server.check_refused(server.get(proof.headers(response=response)))

    @each("qop", ["auth-int", "junk", '""', '"auth,auth-int"'])
    def test_qop_other_than_auth_is_refused(self, server: Server, qop: str) -> None:
        """Qop other than auth is refused (reference: Digest, D12)."""
        server.check_refused(server.get(server.proof(qop=qop.strip('"')).headers(qop=qop)))
        server.check_refused(server.get(server.proof().headers(qop=qop)))

    @each("count", ["1", "0000001", "000000001", "zzzzzzzz", "0000000g", "-0000001"])
    def test_invalid_nonce_count_is_refused(self, server: Server, count: str) -> None:
        """Invalid nonce count is refused (reference: Digest, D13)."""
        server.check_refused(server.get(server.proof(nc=count).headers()))

    @each("name", ["username", "nonce", "uri", "nc", "response", "algorithm", "qop", "x"])
    def test_repeated_parameter_is_refused(self, server: Server, name: str) -> None:
        """Repeated parameter is refused (reference: Digest, D23)."""
        proof = server.proof()
        value = proof.parameters(x='""')[name]
        headers = proof.headers(x='""')
        headers["Authorization"] += f", {name}={value}".encode()
        server.check_refused(server.get(headers))

    @each(
        "value",
        [
            *(b"", b" ", b",", b"x", b"x=", b"=", b'"', b"\xff", b"\xc3\xa4=1", b"opaque=x", b"a b", b"YWxpY2U6eA=="),
            *(b"," * 7500, b'"' * 7500, b"a" * 7500, b"\\" * 7500, b"a=b," * 1800),
        ],
    )
    def test_malformed_field_is_refused(self, md5: Server, value: bytes) -> None:
        """Malformed field is refused (reference: Digest, D24)."""
        for field in (
            b"Digest " + value,
            b"Digest" + value,
            md5.proof().headers()["Authorization"] + b", \xff" + value,
        ):
            md5.check_refused(md5.get({"Authorization": field}))

    def test_userhash_is_refused(self, server: Server) -> None:
        """Userhash is refused (reference: Digest, D27)."""
        hashed = f'"{h(server.algorithm, "alice:postd")}"'
        server.check_refused(server.get(server.proof().headers(username=hashed, userhash="true")))
        server.check_refused(server.get(server.proof().headers(userhash="true")))

    def test_any_bytes_are_refused(self, md5: Server) -> None:
        proof = md5.proof()
        pieces = [f"{name}={value}".encode() for name, value in proof.parameters(response='"' + "0" * 32 + '"').items()]
        value = (
            st.binary(max_size=60)
            | st.lists(st.sampled_from([*pieces, b"x", b"", b'x="', b"uri=/digest"])).map(b", ".join)
            | st.permutations(pieces).map(b", ".join)
        )

        @given(value.map(lambda value: value.translate(None, bytes([*range(9), *range(10, 32), 127]))))
        def check(value: bytes) -> None:
            md5.api.clock.advance(400)  # a well-formed wrong response counts as a failure
            assert md5.get({"Authorization": b"Digest " + value}).status == 401

        check()


class UriTests:
    """Reference: Digest, D6, D7."""

    @pytest.fixture
    def server(self, shared_server: Server) -> Server:
        """One server for all cases: no case counts as a failed login, or uses a nonce of another case."""
        return shared_server

    @each(
        "target, uri",
        [
            ("/digest", "/"),
            ("/digest", ""),
            ("/digest", "/digest/"),
            ("/digest", "/basic"),
            ("/digest", "/digest?"),
            ("/digest", "/digest?a=1"),
            ("/digest?a=1", "/digest"),
            ("/digest?a=1", "/digest?a=2"),
            ("/digest", "/DIGEST"),
            ("/digest", "/digest%2F"),
            ("/digest?x=%2F", "/digest?x=/"),
            ("/digest?x=/a/..", "/digest?x=/"),
            ("/digest", "/%2564igest"),
            ("/digest", "/digest/.."),
            ("/digest", "*"),
            ("/digest", "http://elsewhere/digest"),
            ("/digest", "http://localhost/basic"),
            ("/digest", "http://localhost:80/digest"),
            ("/digest", "http://alice@localhost/digest"),
            ("/digest", "http://localhost"),
            ("/digest", "http:///digest"),
            ("/digest", "ftp://localhost/digest"),
            ("/digest", "localhost/digest"),
            ("/digest", "http://localhost/digest?"),
            ("/digest", "http://localhost/digest#x"),
        ],
    )
    def test_uri_of_another_target_is_400(self, server: Server, target: str, uri: str) -> None:
        proof = server.proof(uri=uri)
        with recorded_log(server.api) as events:
            answer = server.get(proof.headers(), target)
        assert (answer.status, answer.body) == (400, b"Bad Request\n")
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"
        assert "www-authenticate" not in answer.headers
        assert "authentication-info" not in answer.headers
        warning = next(event for event in events if event["log_level"] == LogLevel.warn)
        assert "possible attack" in warning["log_format"]
        assert (warning["user"], warning["address"], warning["hint"]) == ("'alice'", "127.0.0.1", "")
        check_secret(events, proof.hash("GET"), proof.cnonce)
        # The nonce count is unused, and no failure was counted.
        right = structs.replace(proof, uri="/digest")
        check_authenticated(server.get(right.headers()), right)

    @each(
        "target, uri",
        [
            ("/digest?x=%c3%a4", "/digest?x=%C3%A4"),
            ("/digest?x=%7e", "/digest?x=~"),
            ("/%64igest", "/digest"),
            ("/digest", "/%64igest"),
            ("/digest", "//digest"),
            ("/digest", "/x/%2e%2E/./digest"),
            ("/digest", "http://localhost//%64igest"),
            ("/digest?x=%20%22%C3%A4", '/digest?x= "ä'),
        ],
    )
    def test_uri_equivalent_to_the_target_is_accepted(self, server: Server, target: str, uri: str) -> None:
        proof = server.proof(uri=uri)
        check_authenticated(server.get(proof.headers(), target), proof)

    @each(
        "target, uri, difference",
        [
            ("/digest", "/digest?s3cr3t", "its query has 7 bytes with the question mark, that of the request 0"),
            ("/digest", "/app/digest", "its path begins with 4 more bytes than that of the request"),
            ("/digest", "/s3cr3t", "its path has 7 bytes, that of the request 7"),
            ("/digest", "http://s3cr3t/digest", "its uri is of another host, or no path"),
        ],
    )
    def test_warning_says_what_differs(self, server: Server, target: str, uri: str, difference: str) -> None:
        with recorded_log(server.api) as events:
            server.get(server.proof(uri=uri).headers(), target)
        lines = [eventAsText(event) for event in events if "possible attack" in (event["log_format"] or "")]
        assert len(lines) == 1
        assert difference in lines[0]
        assert "s3cr3t" not in lines[0]

    def test_warning_names_the_proxy(self, make: MakeApi) -> None:
        api = make('trusted_proxies = ["127.0.0.1"]', users=account("alice"))
        nonce = challenges_in(ask(api, "GET", "/digest"))[0].nonce
        with recorded_log(api) as events:
            headers = {**Proof(nonce=nonce, uri="/app/digest").headers(), "X-Forwarded-For": "203.0.113.9"}
            assert ask(api, "GET", "/digest", headers=headers).status == 400
        warning = next(event for event in events if event["log_level"] == LogLevel.warn)
        assert warning["address"] == "203.0.113.9"
        assert warning["hint"] == "; the proxy 127.0.0.1 may have changed the target"

    def test_uri_of_another_target_on_the_api_is_400_with_problem_details(self, md5: Server) -> None:
        proof = md5.proof(method="DELETE", uri="/post/2")
        md5.api.add("one")
        answer = ask(md5.api, "DELETE", "/post/1", headers=proof.headers())
        check_problem(answer, 400)
        assert ask(md5.api, "GET", "/post/1").status == 200

    @each("uri", ["http://localhost/digest", "HTTP://LOCALHOST/digest", "https://localhost/digest"])
    def test_uri_in_absolute_form_is_accepted(self, server: Server, uri: str) -> None:
        proof = server.proof(uri=uri)
        check_authenticated(server.get(proof.headers()), proof)

    @each("uri", ["/digest?a=1&b=%20", "/digest?uri=/basic", "/digest?http://localhost/digest"])
    def test_uri_with_the_query_of_the_target_is_accepted(self, server: Server, uri: str) -> None:
        proof = server.proof(uri=uri)
        check_authenticated(server.get(proof.headers(), uri), proof)

    @each(
        "target, host, uri, status",
        [
            (b"http://postd.example/digest", b"postd.example", "/digest", 200),
            (b"http://postd.example/digest", b"postd.example", "http://postd.example/digest", 200),
            (b"http://postd.example/digest", b"POSTD.example", "http://Postd.example/digest", 200),
            (b"/digest", b"[::1]:8080", "http://[::1]:8080/digest", 200),
            (b"http://postd.example/digest", b"postd.example", "/basic", 400),
            (b"/digest?", b"x", "/digest?", 200),
            (b"/digest?", b"x", "/digest", 400),
        ],
    )
    def test_uri_is_compared_with_a_target_in_absolute_form(
        self, md5: Server, target: bytes, host: bytes, uri: str, status: int
    ) -> None:
        proof = md5.proof(uri=uri)
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\nAuthorization: %b\r\n\r\n"
        request = head % (target, host, proof.headers()["Authorization"])
        answer = ask_raw(md5.api.site, md5.api.clock, request)
        assert answer.status == status
        assert answer.header("Authentication-Info") == (None if status == 400 else proof.info)

    @pytest.mark.parametrize(
        ("uri", "status"), [("/digest", 200), ("http://localhost/digest", 400), ("http:///digest", 400)]
    )
    def test_http_1_0_request_without_host_needs_a_uri_in_origin_form(self, md5: Server, uri: str, status: int) -> None:
        field = md5.proof(uri=uri).headers()["Authorization"]
        request = b"GET /digest HTTP/1.0\r\nAuthorization: %b\r\n\r\n" % field
        assert ask_raw(md5.api.site, md5.api.clock, request).status == status


class NonceTests:
    def test_repeated_nonce_count_is_stale(self, server: Server) -> None:
        """`stale` only if the rest of the response is correct (reference: Digest, D14)."""
        proof = server.proof()
        check_authenticated(server.get(proof.headers()), proof)
        for _ in range(3):
            server.check_refused(server.get(proof.headers()), stale=True)
        server.check_refused(server.get(proof.headers(response='"' + "0" * 64 + '"')))
        wrong = structs.replace(proof, password="wrong")
        server.check_refused(server.get(wrong.headers()))

    def test_nonce_count_used_for_one_target_is_stale_for_another(self, md5: Server) -> None:
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)
        other = structs.replace(proof, uri="/digest?other", cnonce="other")
        md5.check_refused(md5.get(other.headers(), other.uri), stale=True)

    def test_nonce_counts_may_be_out_of_order_and_have_gaps(self, server: Server) -> None:
        """Nonce counts may be out of order and have gaps (reference: Digest, D15)."""
        nonce = server.nonce()
        counts = ("00000005", "00000003", "00000001", "0000ffff", "FFFFFFFF", "00000004", "0000000b", "80000000")
        for count in counts:
            proof = server.proof(nonce=nonce, nc=count)
            check_authenticated(server.get(proof.headers()), proof)
        for count in (*counts, "ffffffff", "0000000B", "0000FFFF"):
            server.check_refused(server.get(server.proof(nonce=nonce, nc=count).headers()), stale=True)
        proof = server.proof(nonce=nonce, nc="00000002")
        check_authenticated(server.get(proof.headers()), proof)

    def test_first_nonce_count_may_be_zero(self, server: Server) -> None:
        """As by Ruby's net-http-digest_auth (reference: Digest, D13)."""
        proof = server.proof(nc="00000000")
        check_authenticated(server.get(proof.headers()), proof)
        server.check_refused(server.get(proof.headers()), stale=True)

    def test_nonce_counts_are_separate_for_each_nonce(self, server: Server) -> None:
        for _ in range(3):
            proof = server.proof()
            check_authenticated(server.get(proof.headers()), proof)

    def test_expired_nonce_is_stale(self, server: Server) -> None:
        """At the end of its lifetime, and `stale` only with the correct password (reference: Digest, D16, D17)."""
        nonce = server.nonce()
        server.api.clock.advance(299)
        proof = server.proof(nonce=nonce)
        check_authenticated(server.get(proof.headers()), proof)
        server.api.clock.advance(1)
        late = server.proof(nonce=nonce, nc="00000002")
        server.check_refused(server.get(late.headers()), stale=True)
        server.check_refused(server.get(proof.headers()), stale=True)
        server.check_refused(server.get(structs.replace(late, password="wrong").headers()))
        server.check_refused(server.get(server.proof(nonce=nonce, username="unknown").headers()))

    def test_used_nonce_count_is_refused_until_the_nonce_expires(self, md5: Server) -> None:
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)
        for _ in range(12):
            md5.api.clock.advance(30)  # the store purges expired nonce counts meanwhile
            assert md5.get(proof.headers()).status == 401

    def test_nonce_lifetime_follows_the_settings(self, make: MakeApi) -> None:
        api = make('[digest]\nnonce_lifetime = "2s"')
        for seconds, status in ((1.9, 200), (2, 401)):
            nonce = challenges_in(ask(api, "GET", "/digest"))[0].nonce
            api.clock.advance(seconds)
            assert ask(api, "GET", "/digest", headers=Proof(nonce=nonce).headers()).status == status

    @pytest.mark.parametrize(
        "forge", [lambda _: "forged", lambda _: "", lambda n: n[:-1], lambda n: "B" + n[1:], lambda n: n * 2]
    )
    def test_forged_nonce_is_stale(self, server: Server, forge: Callable[[str], str]) -> None:
        """Forged nonce is stale (reference: Digest, D18, D17)."""
        nonce = forge(server.nonce())
        server.check_refused(server.get(server.proof(nonce=nonce).headers()), stale=True)
        server.check_refused(server.get(server.proof(nonce=nonce, password="wrong").headers()))
        server.check_refused(server.get(server.proof(nonce=nonce, username="unknown").headers()))

    def test_nonce_of_another_server_is_stale(self, server: Server, tmp_path: Path) -> None:
        folder = tmp_path / "other"
        folder.mkdir()
        other = Server(folder, ["MD5"], "MD5")
        server.check_refused(server.get(server.proof(nonce=other.nonce()).headers()), stale=True)
        other.api.close()

    def test_nonce_in_another_spelling_has_no_further_nonce_counts(self, md5: Server) -> None:
        accepted = 0
        for _ in range(5):
            nonce = md5.nonce()
            for other in (nonce, nonce.replace("-", "+").replace("_", "/"), f"{nonce}=", nonce):
                accepted += md5.get(md5.proof(nonce=other).headers()).status == 200
        assert accepted == 5

    def test_nonce_and_its_counts_are_shared_by_workers_and_addresses(self, md5: Server) -> None:
        """A nonce count that one worker has accepted is refused by all others (reference: Digest, D19)."""
        api = md5.api
        loaded = api.settings
        same = LoadedSettings(loaded, {}, {})
        clock, threads = ServiceClock(api.clock), InlineHashThreads(api.clock)  # type: ignore[arg-type]
        worker = make_authentication(same, api.store, clock=clock, reactor=api.clock, threads=threads)  # type: ignore[arg-type]
        worker.start()
        site = make_site(make_tree(loaded, api.store, api.events, worker), clock=api.clock)
        proof = md5.proof()
        request = b"GET /digest HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\n\r\n" % proof.headers()["Authorization"]
        answer = ask_raw(site, api.clock, request, IPv4Address("TCP", "198.51.100.7", 1))
        assert (answer.status, answer.header("Authentication-Info")) == (200, proof.info)
        for peer in (IPv6Address("TCP", "2001:db8::1", 1), UNIXAddress(None)):
            for one in (site, api.site):
                refused = ask_raw(one, api.clock, request, peer)
                assert [challenge.stale for challenge in challenges_in(refused)] == [True]
        worker.stop()

    def test_nonce_is_valid_for_every_offered_algorithm(self, tmp_path: Path) -> None:
        """Nonce is valid for every offered algorithm (reference: Digest, D20)."""
        server = Server(tmp_path, ["SHA-256", "MD5"], "MD5")
        for line, algorithm in ((0, "MD5"), (1, "SHA-256")):
            proof = server.proof(nonce=challenges_in(server.get())[line].nonce, algorithm=algorithm)
            check_authenticated(server.get(proof.headers()), proof)
        server.api.close()

    def test_wrong_response_does_not_use_the_nonce_count(self, md5: Server) -> None:
        proof = md5.proof()
        for wrong in (
            {"password": "wrong"},
            {"username": "unknown"},
            {"realm": "other"},
            {"cnonce": "\udcff", "qop": "x"},
        ):
            assert md5.get(structs.replace(proof, **wrong).headers()).status == 401
        check_authenticated(md5.get(proof.headers()), proof)

    def test_disconnect_uses_the_nonce_count_and_logs_no_warning(self, md5: Server) -> None:
        proof = md5.proof()
        request = b"GET /digest HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\n\r\n" % proof.headers()["Authorization"]
        transport = MemoryTransport()
        with recorded_log(md5.api) as events:
            channel = connect(transport, md5.api.site)
            channel.dataReceived(request)
            transport.loseConnection()
            md5.api.clock.advance(0)
        assert transport.value() == b""
        assert not [event for event in events if event["log_level"] >= LogLevel.warn]
        md5.check_refused(md5.get(proof.headers()), stale=True)


class ThrottleTests:
    def test_too_many_wrong_responses_are_429(self, server: Server) -> None:
        for _ in range(10):
            assert server.get(server.proof(password="wrong").headers()).status == 401
        proof = server.proof()
        answer = server.get(proof.headers())
        assert (answer.status, answer.body) == (429, b"Too Many Requests\n")
        assert answer.header("Retry-After") == "300"
        assert "www-authenticate" not in answer.headers
        assert "authentication-info" not in answer.headers
        server.api.clock.advance(299)
        assert server.get(server.proof().headers()).status == 429
        server.api.clock.advance(1)
        proof = server.proof()
        check_authenticated(server.get(proof.headers()), proof)

    def test_malformed_response_does_not_count_as_a_failure(self, md5: Server) -> None:
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)
        for _ in range(15):
            assert md5.get(proof.headers()).status == 401  # stale
            assert md5.get({"Authorization": "Digest x"}).status == 401
            assert md5.get(md5.proof(realm="other").headers()).status == 401
            assert md5.get(md5.proof(uri="/other").headers()).status == 400
        proof = md5.proof()
        check_authenticated(md5.get(proof.headers()), proof)

    def test_failures_of_unknown_users_are_counted(self, md5: Server) -> None:
        for username in ("unknown", "htpasswd"):
            answers = [md5.get(md5.proof(username=username).headers()).status for _ in range(11)]
            assert answers == [401] * 10 + [429]

    def test_success_resets_earlier_failures(self, md5: Server) -> None:
        for _ in range(3):
            for _ in range(9):
                assert md5.get(md5.proof(password="wrong").headers()).status == 401
            proof = md5.proof()
            check_authenticated(md5.get(proof.headers()), proof)


class LogTests:
    def test_refusal_is_logged_with_its_reason_and_no_secret(self, server: Server) -> None:
        secrets = [PASSWORD]
        with recorded_log(server.api) as events:
            good = server.proof()
            check_authenticated(server.get(good.headers()), good)
            wrong = server.proof(password="wr0ng-password")
            for proof, headers in (
                (good, good.headers()),
                (wrong, wrong.headers()),
                (wrong, wrong.headers(qop="junk")),
                (wrong, wrong.headers(realm='"elsewhere"')),
                (wrong, wrong.headers(uri='"/elsewhere"')),
                (server.proof(username="unknown"), server.proof(username="unknown").headers()),
            ):
                secrets += [headers["Authorization"].decode(), proof.hash("GET"), proof.cnonce, proof.nonce, "wr0ng"]
                server.get(headers)
        check_secret(events, *secrets)
        refusals = [event for event in events if "login refused" in event["log_format"]]
        assert [(event["scheme"], event["user"], event["address"]) for event in refusals] == [
            ("digest", "'alice'", "127.0.0.1"),
            ("digest", "'alice'", "127.0.0.1"),
            ("digest", "-", "127.0.0.1"),
            ("digest", "'alice'", "127.0.0.1"),
            ("digest", "an unknown user of 7 bytes", "127.0.0.1"),
        ]
        reasons = [event["why"] for event in refusals]
        assert len(set(reasons)) == 5
        assert all(reasons)
