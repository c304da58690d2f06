"""Basic's user-pass: the RFC's examples, and malformed input."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.basic import BasicSyntaxError, decode_user_pass
from tests.cases import each
from tests.linear import Input, check_linear, quietly

WITHOUT_CONTROLS = st.characters(exclude_categories=["Cc", "Cs"])


def token(text: str | bytes) -> bytes:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode())


def refusal(sent: bytes) -> str:
    with pytest.raises(BasicSyntaxError) as caught:
        decode_user_pass(sent)
    return str(caught.value)


class DecodeTests:
    def test_examples_of_rfc_7617(self) -> None:
        assert decode_user_pass(b"QWxhZGRpbjpvcGVuIHNlc2FtZQ==") == ("Aladdin", "open sesame")  # §2
        assert decode_user_pass(b"dGVzdDoxMjPCow==") == ("test", "123£")  # §2.1

    @each(
        "text, user, password",
        [
            ("bob:p:w", "bob", "p:w"),
            ("bob::", "bob", ":"),
            ("bob:", "bob", ""),
            (":secret", "", "secret"),
            (":", "", ""),
            ("jürgen:пароль", "jürgen", "пароль"),
            ("ju\u0308rgen:x", "ju\u0308rgen", "x"),
            (" bob : p w ", " bob ", " p w "),
            ("#x:y", "#x", "y"),
            ("bob:🔑\u00a0", "bob", "🔑\u00a0"),
            ("bob:%41+", "bob", "%41+"),
        ],
    )
    def test_first_colon_ends_the_name(self, text: str, user: str, password: str) -> None:
        assert decode_user_pass(token(text)) == (user, password)

    @each(
        "sent",
        [
            b"=",
            b"====",
            b"Ym9iOnA6dw",  # of bob:p:w, without its padding
            b"Ym9iOnA6dw=",
            b"Ym9iOnA6dw===",
            b"Ym9iOnA6dx==",  # bits to spare that are not zero
            b"Ym9iOnA6dw==Ym9iOnA6dw==",
            b"Ym9i!!OnA6dw==",
            b"Ym9i OnA6dw==",
            b"Ym9i\r\nOnA6dw==",
            b" Ym9iOnA6dw==",
            b"Ym9iOnA6dw== ",
            b"Ym9iOnA6dw==,",
            b"bob:p:w",
            b"Ym9iOnA6dw==\xff",
            b"\xff\xff\xff\xff",
            b"_-__",  # the URL-safe alphabet is another one
            token("alice:>>>???").replace(b"+", b"-").replace(b"/", b"_"),
        ],
    )
    def test_non_canonical_base64_is_refused(self, sent: bytes) -> None:
        assert "Base64" in refusal(sent)

    @each("text", ["jürgen:x", "a:ÿ", "Ñandú:pässwörd:ß", "a:\xa0"])
    def test_octets_that_are_not_utf_8_are_latin_1(self, text: str) -> None:
        assert decode_user_pass(token(text.encode("latin-1"))) == decode_user_pass(token(text))

    @each("text", [b"\xed\xa0\x80:x", "jürgen:\u20ac".encode("cp1252"), "a:b".encode("utf-16")])
    def test_octets_that_are_neither_are_refused(self, text: bytes) -> None:
        assert refusal(token(text)) == "a control character"

    @each("text", ["bob", "", "bob;secret", "bob\uff1asecret"])
    def test_missing_colon_is_refused(self, text: str) -> None:
        assert refusal(token(text))

    @each("control", [*"\0\t\n\r\x1b\x1f\x7f\x80\x85\x9f"])
    def test_control_character_is_refused(self, control: str) -> None:
        for text in (f"al{control}ice:x", f"alice:x{control}", f"{control}alice:x", f"alice{control}:x"):
            assert refusal(token(text)) == "a control character"

    def test_reason_contains_no_credentials(self) -> None:
        for sent in (b"s3cr3t", b"s3cr3t!:", token("s3cr3t"), token("s3cr3t:s3cr3t\n"), token(b"s3cr3t:\x80")):
            assert "s3cr3t" not in refusal(sent)
            assert sent.decode() not in refusal(sent)

    @given(user=st.text(WITHOUT_CONTROLS).filter(lambda user: ":" not in user), password=st.text(WITHOUT_CONTROLS))
    def test_encoded_user_pass_round_trips(self, user: str, password: str) -> None:
        assert decode_user_pass(token(f"{user}:{password}")) == (user, password)

    @given(st.binary() | st.binary().map(token) | st.text().map(token))
    def test_any_token_is_refused_or_the_only_spelling(self, sent: bytes) -> None:
        try:
            user, password = decode_user_pass(sent)
        except BasicSyntaxError:
            return
        text = f"{user}:{password}"
        assert sent in {token(text), token(text.encode("latin-1", "replace"))}

    def test_token_is_linear(self) -> None:
        units = [b"A", b"=", b"A=", b" ", b"!", b"\xff", b"AA==", token("a:b"), token(":::")]
        check_linear(quietly(decode_user_pass, BasicSyntaxError), [Input(b"", unit) for unit in units], 8192)
