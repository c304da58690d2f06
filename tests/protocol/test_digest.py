"""Digest: hashes by the RFCs' examples, syntax with any input, nonces."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from postd.protocol.digest import (
    KEPT_CLIENTS_MAX,
    KEPT_RESPONSE_MAX_BYTES,
    DigestDecoder,
    DigestResponse,
    DigestSyntaxError,
    allowed_hash,
    check_nonce,
    check_realm,
    decode_digest_response,
    h_a1,
    make_nonce,
    response_hash,
    response_hashes,
)
from tests.cases import each
from tests.linear import Input, check_linear, quietly

# RFC 7616 §3.9.1, as the two Authorization fields stand there.
RFC7616_MD5 = b"""username="Mufasa",
       realm="http-auth@example.org",
       uri="/dir/index.html",
       algorithm=MD5,
       nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
       nc=00000001,
       cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
       qop=auth,
       response="8ca523f5e9506fed4657c9700eebdbec",
       opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\"""".replace(b"\n", b"")
RFC7616_SHA256 = RFC7616_MD5.replace(b"MD5", b"SHA-256").replace(
    b"8ca523f5e9506fed4657c9700eebdbec", b"753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"
)
# RFC 2617 §3.5; it names no algorithm.
RFC2617 = (
    b'username="Mufasa", realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", '
    b'uri="/dir/index.html", qop=auth, nc=00000001, cnonce="0a4f113b", '
    b'response="6629fae49393a05397450978507c4ef1", opaque="5ccc069c403ebaf9f0171e9517f40e41"'
)

SENT = {
    "username": "alice",
    "realm": "postd",
    "nonce": "N",
    "uri": "/digest",
    "response": "0" * 32,
    "algorithm": "MD5",
    "cnonce": "C",
    "nc": "00000001",
    "qop": "auth",
}
KEY = b"k" * 32


def field(**parameters: str | None) -> bytes:
    """Return the parameters of `SENT` with changes; those with None are left out."""
    return ", ".join(
        f'{name}="{value}"' for name, value in {**SENT, **parameters}.items() if value is not None
    ).encode()


def refusal(value: bytes) -> str:
    with pytest.raises(DigestSyntaxError) as caught:
        decode_digest_response(value)
    return str(caught.value)


def is_right(value: bytes, password: str, method: str = "GET") -> bool:
    """Return whether a response proves knowledge of the password."""
    sent = decode_digest_response(value)
    return response_hash(sent, h_a1(sent.algorithm, sent.username, sent.realm, password), method) == sent.response


class ResponseHashTests:
    def test_examples_of_rfc_7616(self) -> None:
        assert is_right(RFC7616_MD5, "Circle of Life")
        assert is_right(RFC7616_SHA256, "Circle of Life")

    def test_example_of_rfc_2617(self) -> None:
        assert is_right(RFC2617, "Circle Of Life")

    @each("value", [RFC7616_MD5, RFC7616_SHA256])
    def test_each_hashed_parameter_changes_the_response(self, value: bytes) -> None:
        assert not is_right(value, "Circle of life")
        assert not is_right(value, "Circle of Life", method="POST")
        for old, new in (
            (b"Mufasa", b"mufasa"),
            (b"example.org", b"example.com"),
            (b"/dir/", b"/dir//"),
            (b"7ypf", b"8ypf"),
            (b"00000001", b"00000002"),
            (b"f2/wE", b"f3/wE"),
        ):
            assert not is_right(value.replace(old, new), "Circle of Life")

    @each("algorithm, hash_", [("MD5", hashlib.md5), ("SHA-256", hashlib.sha256)])
    def test_rspauth_is_computed_as_in_the_spec(self, algorithm: str, hash_: Any) -> None:
        def h(text: str) -> str:
            return str(hash_(text.encode()).hexdigest())

        sent = DigestResponse("alice", "postd", "N", "/digest?a=1", "", algorithm, "C", "0000000a")
        a1, a2 = "alice:postd:pass:wörd", ":/digest?a=1"
        rspauth = h(f"{h(a1)}:N:0000000a:C:auth:{h(a2)}")
        ha1 = h_a1(algorithm, "alice", "postd", "pass:wörd")
        assert response_hash(sent, ha1, "") == rspauth
        assert response_hashes(sent, ha1, "GET") == (response_hash(sent, ha1, "GET"), rspauth)

    def test_count_is_hashed_in_the_case_sent(self) -> None:
        lower, upper = (
            DigestResponse("alice", "postd", "N", "/", "", "MD5", "C", count) for count in ("0000000a", "0000000A")
        )
        assert response_hash(lower, "0" * 32, "GET") != response_hash(upper, "0" * 32, "GET")

    def test_text_is_hashed_as_utf_8(self) -> None:
        assert h_a1("MD5", "jürgen", "postd", "пароль") == hashlib.md5("jürgen:postd:пароль".encode()).hexdigest()

    def test_invalid_utf_8_is_hashed_as_sent(self) -> None:
        sent = decode_digest_response(field().replace(b"/digest", b"/\xff").replace(b'"C"', b'"\xfe"'))
        ha2 = hashlib.md5(b"GET:/\xff").hexdigest().encode()
        wanted = hashlib.md5(b"0:N:00000001:\xfe:auth:" + ha2).hexdigest()
        assert response_hash(sent, "0", "GET") == wanted


class RealmTests:
    @each("realm", ["postd", "The posts of 'x', all: a=b", "http-auth@example.org", " "])
    def test_realm_that_needs_no_escapes_is_accepted(self, realm: str) -> None:
        assert check_realm(realm) == realm

    @each("realm", ["", 'a"b', "a\\b", "a\nb", "a\x7fb", "a\tb", "bücher", "a\u2028"])
    def test_realm_that_needs_escapes_is_refused(self, realm: str) -> None:
        with pytest.raises(ValueError, match="is not a realm"):
            check_realm(realm)


class DecodeTests:
    def test_all_parameters_are_decoded(self) -> None:
        sent = DigestResponse("alice", "postd", "N", "/digest", "0" * 32, "MD5", "C", "00000001")
        assert decode_digest_response(field()) == sent

    def test_absent_algorithm_is_md5(self) -> None:
        assert decode_digest_response(field(algorithm=None)).algorithm == "MD5"

    @each("name", ["username", "realm", "nonce", "uri", "response", "cnonce", "nc", "qop"])
    def test_missing_parameter_is_refused(self, name: str) -> None:
        assert name in refusal(field(**{name: None}))
        assert refusal(field(**{name: None, f"x{name}": "x"}))

    @each(
        "value",
        [
            b"",
            b" ",
            b",",
            b"username",
            b'username="alice"',
            b"YWxpY2U6c2VjcmV0",
            field().replace(b"=", b""),
            field().replace(b",", b""),
            field().replace(b",", b";"),
            field().replace(b'"', b"'"),
            field().replace(b"=", b":"),
            field()[:-1],
            field() + b" x",
            field() + b", x",
            field() + b", x=",
            field() + b', x="',
            field() + b', x="\\"',
            field() + b', x="y"z',
            field() + b', x="y" "z"',
            field() + b", x=y z",
            field() + b', ="y"',
            field() + b", =",
            field() + b', "x"=y',
            field() + b", x=(y)",
            field() + b", x=y@z",
            field() + b', x="\x00"',
            field() + b', x="\x0a"',
            field() + b', x="\x7f"',
            field() + b', x="\\\x0b"',
            field() + b', \xc3\xa4="y"',
            field() + b', \xff="y"',
            field() + b", x=\xff",
            field() + b"\n",
            b'Digest username="x", ' + field(username=None),
            "\uff1d".encode().join(field().split(b"=")),
        ],
    )
    def test_malformed_parameters_are_refused(self, value: bytes) -> None:
        assert refusal(value)

    @each(
        "value",
        [
            field().replace(b", ", b","),
            field().replace(b", ", b" ,\t "),
            field().replace(b"=", b" = "),
            field().replace(b"=", b"\t=\t"),
            b" ,, ," + field().replace(b", ", b",, ,") + b" ,\t,",
            field().replace(b"username", b"USERNAME").replace(b"qop", b"Qop").replace(b"nc=", b"NC="),
            field().replace(b'"MD5"', b"MD5").replace(b'"auth"', b"auth").replace(b'"00000001"', b"00000001"),
            field().replace(b'"alice"', b"alice").replace(b'"postd"', b"postd"),
            field().replace(b"MD5", b"md5").replace(b"auth", b"AUTH"),
            field().replace(b'"alice"', b'"\\a\\lice"').replace(b'"postd"', b'"post\\d"'),
            field() + b', opaque="", charset=UTF-8, userhash=false, x*=y, realm*="z"',
            b", ".join(reversed(field().split(b", "))),
        ],
    )
    def test_variants_of_clients_are_accepted(self, value: bytes) -> None:
        assert decode_digest_response(value) == decode_digest_response(field())

    @each(
        "written, username",
        [
            (b'"al\\"i\\\\ce"', 'al"i\\ce'),
            (b'"\\\\"', "\\"),
            (b'"\\\\\\""', '\\"'),
            (b'""', ""),
            (b'"a, b=c"', "a, b=c"),
            (b'"a\tb"', "a\tb"),
            ('"jürgen"'.encode(), "jürgen"),
            ('"\\jürge\\n"'.encode(), "jürgen"),
            ('"j\\ürgen"'.encode(), "jürgen"),
            (b'"j\xfcrgen"', "jürgen"),
            (b'"\\j\xfcrg\\en"', "jürgen"),
        ],
    )
    def test_quoted_pairs_are_decoded(self, written: bytes, username: str) -> None:
        assert decode_digest_response(field().replace(b'"alice"', written)).username == username

    @each("name", [*SENT, "opaque", "x", "username*", "userhash"])
    def test_duplicate_parameter_is_refused(self, name: str) -> None:
        value = SENT.get(name, "x")
        once = field(**{name: value})
        assert refusal(once + f', {name}="{value}"'.encode())
        assert refusal(once + f", {name.upper()}=x".encode())

    @each("algorithm", ["", "SHA", "SHA-512-256", "MD5-sess", "SHA-256-sess", "sha256", "\u212aMD5"])
    def test_unsupported_algorithm_is_refused(self, algorithm: str) -> None:
        assert refusal(field(algorithm=algorithm))

    @each("qop", ["auth-int", "junk", "", "auth,auth-int", "auth "])
    def test_unsupported_qop_is_refused(self, qop: str) -> None:
        assert refusal(field(qop=qop))

    @each(
        "count",
        ["", "1", "0000001", "000000001", "zzzzzzzz", "0x000001", "-0000001", " 0000001", "\u0660" * 8],
    )
    def test_malformed_count_is_refused(self, count: str) -> None:
        assert refusal(field(nc=count))

    @each("response", ["", "x", "0" * 31, "g" * 32, "0" * 40, "0" * 65, "\u0660" * 32])
    def test_response_that_is_no_hash_is_refused(self, response: str) -> None:
        assert refusal(field(response=response)) == "response is not a hash in hex digits"

    def test_username_that_is_not_utf_8_is_latin_1(self) -> None:
        for sent in ("j\u00fcrgen".encode("latin-1"), "j\u00fcrgen".encode()):
            assert decode_digest_response(field().replace(b"alice", sent)).username == "j\u00fcrgen"

    @each("count", ["00000000", "00000001", "0000000a", "0000000A", "ffffffff"])
    def test_count_is_kept_as_sent(self, count: str) -> None:
        assert decode_digest_response(field(nc=count)).nc == count

    @each("userhash", ["true", "TRUE", "1", ""])
    def test_userhash_is_refused(self, userhash: str) -> None:
        assert refusal(field(userhash=userhash))

    def test_reason_contains_no_values(self) -> None:
        for name in SENT:
            for wrong in ({}, {"qop": "s3cr3t"}, {"nc": "s3cr3t"}, {"userhash": "s3cr3t"}, {"algorithm": "s3cr3t"}):
                assert "s3cr3t" not in refusal(field(**{name: "s3cr3t", **wrong}) + (b"" if wrong else b", x"))


class ExtendedUsernameTests:
    """`username*` (RFC 7616 §3.4, RFC 8187)."""

    def decode(self, written: str) -> str:
        return decode_digest_response(field(username=None) + f", username*={written}".encode()).username

    @each(
        "written, username",
        [
            ("UTF-8''J%C3%A4s%C3%B8n%20Doe", "Jäsøn Doe"),  # RFC 7616 §3.9.2
            ("utf-8'de'j%c3%bcrgen", "jürgen"),
            ("UTF-8'en-GB'alice", "alice"),
            ("\"UTF-8''alice\"", "alice"),
            ("UTF-8''a%22b%5Cc%25", 'a"b\\c%'),
            ("UTF-8''", ""),
        ],
    )
    def test_extended_username_is_decoded(self, written: str, username: str) -> None:
        assert self.decode(written) == username

    @each(
        "written",
        [
            "alice",
            "'alice'",
            "UTF-8'alice",
            "ISO-8859-1''j%FCrgen",
            "UTF-8''j%FCrgen",
            "UTF-8''%ED%A0%80",
            "UTF-8''50%",
            "UTF-8''%4",
            "UTF-8''%GG",
            "UTF-8''a'b",
            "\"UTF-8''a b\"",
            "\"UTF-8''jürgen\"",
            '""',
        ],
    )
    def test_malformed_extended_username_is_refused(self, written: str) -> None:
        with pytest.raises(DigestSyntaxError):
            self.decode(written)

    def test_both_usernames_are_refused(self) -> None:
        assert refusal(field() + b", username*=UTF-8''alice")
        assert refusal(field(username="") + b", username*=UTF-8''alice")

    def test_example_of_rfc_7616_without_unsupported_features(self) -> None:
        value = RFC7616_SHA256.replace(b'username="Mufasa"', b"username*=UTF-8''J%C3%A4s%C3%B8n%20Doe")
        sent = decode_digest_response(value)
        proof = response_hash(sent, h_a1("SHA-256", "Jäsøn Doe", sent.realm, "Secret, or not?"), "GET").encode()
        rfc = b"753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"
        assert is_right(value.replace(rfc, proof), "Secret, or not?")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="".join(map(chr, (*range(32), 127)))))
SPACE = st.text(" \t", max_size=2)
COMMAS = st.lists(SPACE, min_size=2, max_size=4).map(",".join)
CASES = st.sampled_from([str.lower, str.upper, str.title])


@st.composite
def lists(draw: st.DrawFn) -> tuple[bytes, DigestResponse]:
    """Generate a list of parameters as clients may write it, and its values."""
    texts = {name: draw(TEXT) for name in ("username", "realm", "nonce", "uri", "cnonce")}
    texts["response"] = draw(st.text("0123456789abcdefABCDEF", min_size=64, max_size=64))
    count = f"{draw(st.integers(0, 0xFFFFFFFF)):08x}"
    others = draw(st.dictionaries(st.text("xyz!#$-.^_|~", min_size=1, max_size=3), TEXT, max_size=3))
    parameters = [(name, quoted(text)) for name, text in {**texts, **others}.items()]
    parameters += [("nc", draw(st.sampled_from([count, quoted(count)]))), ("qop", "auth"), ("algorithm", "sha-256")]
    value = draw(st.just("") | COMMAS)
    for name, written in draw(st.permutations(parameters)):
        value += f"{draw(CASES)(name)}{draw(SPACE)}={draw(SPACE)}{written}{draw(COMMAS)}"
    return value.encode(), DigestResponse(**texts, algorithm="SHA-256", nc=count)


def attempt(decode: Callable[[bytes], DigestResponse], value: bytes) -> DigestResponse | str:
    """Return the decoded response, or the reason of its refusal."""
    try:
        return decode(value)
    except DigestSyntaxError as error:
        return str(error)


ORDERS = {
    "curl": ("username", "realm", "nonce", "uri", "cnonce", "nc", "qop", "response", "algorithm"),
    "requests": ("username", "realm", "nonce", "uri", "response", "algorithm", "qop", "nc", "cnonce"),
    "reversed": tuple(reversed(SENT)),
}
CHANGING = {"nc": "0000000b", "cnonce": "f2/wE4q7=", "response": "5" * 32}


def ordered(order: str, **parameters: str) -> bytes:
    """Return parameters in the order of a client; `nc`, `qop` and `algorithm` are not quoted."""
    values = {**SENT, **CHANGING, **parameters}
    unquoted = {"nc", "qop", "algorithm"}
    return ", ".join(
        f"{name}={values[name] if name in unquoted else quoted(values[name])}" for name in ORDERS[order]
    ).encode()


class DecoderTests:
    """Responses of one client, one after the other (`DigestDecoder`)."""

    def check(self, first: bytes, others: Iterable[bytes]) -> None:
        """Check that others are decoded after the first one as they are alone."""
        wrong = []
        for value in others:
            decoder = DigestDecoder()
            attempt(decoder.decode, first)
            if attempt(decoder.decode, value) != attempt(decode_digest_response, value):
                wrong.append(value)
        assert wrong == []

    @each("order", ORDERS)
    def test_values_that_change_are_decoded_anew(self, order: str) -> None:
        decoder = DigestDecoder()
        first = decoder.decode(ordered(order))
        second = decoder.decode(ordered(order, nc="0000000C", cnonce="123456789", response="aB" * 16))
        assert (second.nc, second.cnonce, second.response) == ("0000000C", "123456789", "aB" * 16)
        assert replace(second, nc=first.nc, cnonce=first.cnonce, response=first.response) == first
        assert second.nonce is first.nonce or order == "reversed"  # as it is decoded once

    @each("order", ORDERS)
    def test_any_other_byte_is_decoded_as_alone(self, order: str) -> None:
        first = ordered(order)
        changed = (first[:at] + byte + first[at + 1 :] for at in range(len(first)) for byte in OTHER_BYTES)
        self.check(first, changed)

    @each("order", ORDERS)
    def test_other_values_are_decoded_as_alone(self, order: str) -> None:
        values = (
            "",
            "0000000b",
            "0000000g",
            "00000001",
            '"',
            "\\",
            "a, nc=0000000c",
            "f2/wE4q7 ",
            "5" * 32,
            "5" * 31 + "g",
            "\xe9",
        )
        lists = [ordered(order, **{name: value}) for name in SENT for value in values]
        for first in lists:
            self.check(first, lists)

    @each("order", ORDERS)
    def test_cnonce_is_not_taken_for_a_byte_of_another_value(self, order: str) -> None:
        """The user name is in Latin-1 the character that the cnonce is in UTF-8."""
        first, other = (
            ordered(order, cnonce="\xe9", username="<>").replace(b"<>", username) for username in (b"\xe9", b"e")
        )
        self.check(first, [other])

    def test_first_use_of_a_nonce_is_not_kept(self) -> None:
        decoder = DigestDecoder()
        first, second = (decoder.decode(ordered("curl", nc="00000001")) for _ in range(2))
        assert second.username is not first.username

    def test_number_of_kept_clients_is_bounded(self) -> None:
        decoder = DigestDecoder()
        nonces = [decoder.decode(ordered("curl", nonce=f"nonce{n}")).nonce for n in range(KEPT_CLIENTS_MAX + 1)]
        assert decoder.decode(ordered("curl", nonce="nonce0")).nonce is not nonces[0]
        assert decoder.decode(ordered("curl", nonce=nonces[-1])).nonce is nonces[-1]

    def test_long_response_is_not_kept(self) -> None:
        decoder = DigestDecoder()
        first, second = (decoder.decode(ordered("curl", uri="/" + "a" * KEPT_RESPONSE_MAX_BYTES)) for _ in range(2))
        assert second.uri is not first.uri


OTHER_BYTES = [bytes([byte]) for byte in b'"\\,= \tag0F\x00\x7f\xe9']


class AnythingTests:
    @given(
        st.binary(max_size=200)
        | st.lists(
            st.sampled_from([*field().split(b", "), b'"', b"=", b",", b"\\", b" ", b"\t", b"\xff", b"\x00", b"x", b"*"])
        ).map(b"".join)
        | st.lists(st.sampled_from([*field().split(b", "), b"x=y", b"", b'x="\\', b"username*=UTF-8''x"])).map(
            b", ".join
        )
    )
    @example(field())
    def test_any_input_is_decoded_or_refused(self, value: bytes) -> None:
        try:
            sent = decode_digest_response(value)
        except DigestSyntaxError:
            return
        assert sent.algorithm == "MD5"
        assert int(sent.nc, 16) >= 0

    @given(lists())
    def test_any_valid_list_is_decoded(self, made: tuple[bytes, DigestResponse]) -> None:
        value, sent = made
        assert decode_digest_response(value) == sent

    def test_parameters_are_linear(self) -> None:
        units = [
            *(b" ", b"\t", b",", b", ", b" ,", b"=", b'"', b"\\", b'\\"', b"a", b"a ", b"a,", b"a=", b"a=b", b"a=b,"),
            *(b'a="', b'a="b"', b'a="b",', b'a="\\', b'a="b",, ', b"\xff", b"\xc3\xa4", b"\x00", b"*", b"%", b"a= "),
            *(b"a =", b"a\t=\t", b"username*=UTF-8''%41", b"%41", b"'"),
        ]
        begins = [b"", b"a", field() + b", ", field() + b', x="', field(username=None) + b", username*=UTF-8''"]
        begins.append(field(nc=None) + b", nc=")
        inputs = [Input(begin, unit) for begin in begins for unit in units]
        check_linear(quietly(decode_digest_response, DigestSyntaxError), inputs, 8192)


class NonceTests:
    def test_own_nonce_is_verified_with_its_expiry(self) -> None:
        nonce = check_nonce(KEY, make_nonce(KEY, expires=1_800_000_300.5))
        assert nonce is not None
        assert nonce.expires == 1_800_000_300.5
        assert len(nonce.identity) >= 8

    @given(key=st.binary(min_size=1, max_size=64), expires=st.floats(0, 1e11))
    def test_expiry_is_kept_to_the_millisecond(self, key: bytes, expires: float) -> None:
        nonce = check_nonce(key, make_nonce(key, expires=expires))
        assert nonce is not None
        assert abs(nonce.expires - expires) <= 0.001

    def test_nonces_are_unique(self) -> None:
        made = {make_nonce(KEY, expires=1) for _ in range(1000)}
        known = [check_nonce(KEY, text) for text in made]
        assert len({nonce.identity for nonce in known if nonce is not None}) == 1000

    def test_nonce_needs_no_escapes(self) -> None:
        for _ in range(100):
            assert set(make_nonce(KEY, expires=1)) <= set(
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
            )

    def test_nonce_of_another_key_is_refused(self) -> None:
        assert check_nonce(b"other" * 8, make_nonce(KEY, expires=1)) is None
        assert check_nonce(KEY, make_nonce(b"", expires=1)) is None

    def test_nonce_with_a_flipped_bit_is_refused(self) -> None:
        raw = base64.urlsafe_b64decode(make_nonce(KEY, expires=1_800_000_000))
        for bit in range(8 * len(raw)):
            changed = bytearray(raw)
            changed[bit // 8] ^= 1 << bit % 8
            assert check_nonce(KEY, base64.urlsafe_b64encode(changed).decode()) is None

    def test_truncated_nonce_is_refused(self) -> None:
        text = make_nonce(KEY, expires=1)
        for length in range(len(text)):
            assert check_nonce(KEY, text[:length]) is None
            assert check_nonce(KEY, text[length + 1 :]) is None
        for more in ("A", "AAAA", " ", "\n", "=A", text):
            assert check_nonce(KEY, text + more) is None

    @each("text", ["", "x", "=", "====", "A" * 44, "!" * 44, "\xe9" * 44, "\udcff" * 44, "A" * 8192])
    def test_malformed_nonce_is_refused(self, text: str) -> None:
        assert check_nonce(KEY, text) is None

    @given(st.text())
    def test_random_text_is_refused(self, text: str) -> None:
        assert check_nonce(KEY, text) is None

    def test_nonce_has_one_spelling(self) -> None:
        """A second spelling would allow its counts to be used again."""
        known: set[bytes] = set()
        for _ in range(20):
            text = make_nonce(KEY, expires=1)
            others = (text, text.replace("-", "+").replace("_", "/"), f"{text}=", f"{text}====")
            nonces = [check_nonce(KEY, other) for other in others]
            identities = {nonce.identity for nonce in nonces if nonce is not None}
            assert len(identities) == 1
            known |= identities
        assert len(known) == 20


def test_md5_is_used_where_fips_forbids_it_for_security() -> None:
    def forbidden_md5(data: bytes = b"", *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return hashlib.md5(data, usedforsecurity=False)

    assert allowed_hash(forbidden_md5)(b"a").hexdigest() == hashlib.md5(b"a", usedforsecurity=False).hexdigest()
