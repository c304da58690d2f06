"""The syntax of Bearer tokens and scopes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.bearer import BearerSyntaxError, decode_scope, decode_token
from tests.cases import each


class TokenTests:
    @each(
        "sent",
        [
            b"mF_9.B5f-4.1JqM",  # RFC 6750 §2.1
            b"x",
            b"0",
            b"a.b.c",
            b"..",
            b"-._~+/",
            b"x=",
            b"abc===========",
            b"Bearer",
            b"a" * 8192,
        ],
    )
    def test_token_is_returned_as_sent(self, sent: bytes) -> None:
        assert decode_token(sent) == sent.decode()

    @each(
        "sent",
        [
            b"=",
            b"===",
            b"=abc",
            b"a=b",
            b"a b",
            b"a  b",
            b"a\tb",
            b" a",
            b"a ",
            b"a\n",
            b"\na",
            b"a\r\nb",
            b"a\0",
            b"a,b",
            b"a, b",
            b"a;b",
            b'"a"',
            b"token=a",
            b"<a>",
            b"a%20b",
            b"a\\b",
            b"a:b",
            b"a@b",
            b"a{b}",
            b"a*",
            b"a\x7f",
            b"a\xff",
            "\uff41".encode(),
            b'{"payload":"x","signature":"y"}',
        ],
    )
    def test_malformed_token_is_refused(self, sent: bytes) -> None:
        with pytest.raises(BearerSyntaxError, match="not one token"):
            decode_token(sent)

    def test_empty_token_is_refused(self) -> None:
        with pytest.raises(BearerSyntaxError, match="no token"):
            decode_token(b"")

    @given(st.binary() | st.text("aZ9-._~+/= ,").map(str.encode))
    def test_token_follows_the_grammar_and_reason_does_not_quote_it(self, sent: bytes) -> None:
        text = sent.decode("latin-1")
        letters = text.rstrip("=")
        good = letters != "" and letters.isascii() and all(one.isalnum() or one in "-._~+/" for one in letters)
        try:
            assert decode_token(sent) == text
        except BearerSyntaxError as error:
            assert not good
            assert str(error) in {"no token", "not one token"}
        else:
            assert good


class ScopeTests:
    @each(
        "text, words",
        [
            ("", set()),
            ("posts:read", {"posts:read"}),
            ("posts:read posts:write", {"posts:read", "posts:write"}),
            ("a a", {"a"}),
            ("https://posts.example/read", {"https://posts.example/read"}),
            ("!#$%&'()*+,-./[]^_`{|}~", {"!#$%&'()*+,-./[]^_`{|}~"}),
        ],
    )
    def test_scope_elements_are_separated_by_one_space(self, text: str, words: set[str]) -> None:
        assert decode_scope(text) == words

    @each(
        "text",
        [" ", " a", "a ", "a  b", "a\tb", "a\n", "a\r\nb", 'a"b', "a\\b", "a\0", "a\x7f", "schreiben\u00e4", "\uff41"],
    )
    def test_scope_that_needs_escapes_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="is not a scope"):
            decode_scope(text)

    @given(st.text() | st.text(st.characters(max_codepoint=0x7F)))
    def test_accepted_scope_can_be_quoted(self, text: str) -> None:
        try:
            words = decode_scope(text)
        except ValueError:
            return
        assert set(text.split(" ")) - {""} == words
        assert re.fullmatch(r"[\x20-\x7e]*", text)
        assert not set(text) & {'"', "\\"}
