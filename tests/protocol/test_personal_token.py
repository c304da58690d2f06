"""The text of personal access tokens: form, checksum, hash."""

import hashlib
import string
import zlib

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.personal_token import PREFIX, has_prefix, hash_token, is_token, make_record_id, make_token
from tests.cases import each

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

ZEROS = "postd_" + "0" * 40 + "2LyGWW"
"""crc32(b"postd_" + 40 * b"0") is 2,156,931,920."""

RANDOM_PARTS = st.text(st.sampled_from(BASE62), min_size=40, max_size=40)


def checksum_of(checked: str) -> str:
    """Return the checksum as the contract has it, independently of the code."""
    crc = zlib.crc32(checked.encode())
    return "".join(BASE62[crc // 62**power % 62] for power in range(5, -1, -1))


def test_tokens_are_unique_and_have_the_form() -> None:
    made = {make_token() for _ in range(300)}
    assert len(made) == 300
    for token in made:
        assert (len(token), token[:6]) == (52, PREFIX)
        assert token[6:].isascii()
        assert token[6:].isalnum()
        assert token[46:] == checksum_of(token[:46])
        assert is_token(token)


def test_random_part_has_all_digits() -> None:
    assert {char for _ in range(100) for char in make_token()[6:46]} == set(BASE62)


@given(RANDOM_PARTS)
def test_checksum_is_the_crc_32_in_base_62(random_part: str) -> None:
    checked = PREFIX + random_part
    assert is_token(checked + checksum_of(checked))


def test_known_token_has_its_checksum() -> None:
    assert checksum_of(ZEROS[:46]) == ZEROS[46:]
    assert is_token(ZEROS)


@given(RANDOM_PARTS, st.integers(6, 51), st.sampled_from(BASE62))
def test_typing_error_is_noticed(random_part: str, position: int, typed: str) -> None:
    checked = PREFIX + random_part
    token = checked + checksum_of(checked)
    changed = token[:position] + typed + token[position + 1 :]
    assert is_token(changed) == (changed == token)


@given(RANDOM_PARTS, st.integers(6, 50))
def test_swapped_characters_are_noticed(random_part: str, position: int) -> None:
    checked = PREFIX + random_part
    token = checked + checksum_of(checked)
    swapped = token[:position] + token[position + 1] + token[position] + token[position + 2 :]
    assert is_token(swapped) == (swapped == token)


@each(
    "text",
    [
        *("", "postd_", ZEROS[:-1], ZEROS + "0", ZEROS + "\n", " " + ZEROS, ZEROS.upper(), "POSTD_" + ZEROS[6:]),
        *(ZEROS[:45] + "é" + ZEROS[46:], ZEROS[:45] + "\u0660" + ZEROS[46:], ZEROS[:45] + "-" + ZEROS[46:]),
        *(ZEROS[:45] + "\0" + ZEROS[46:], ZEROS[6:], "ghp_" + ZEROS[6:]),
    ],
)
def test_other_text_is_no_token(text: str) -> None:
    assert not is_token(text)


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    assert has_prefix(text) == (text[:6] == "postd_")
    assert not is_token(text) or len(text) == 52


def test_hash_is_sha_256_of_the_whole() -> None:
    token = make_token()
    assert hash_token(token) == hashlib.sha256(token.encode()).digest()


def test_ids_of_records_are_unique_and_short() -> None:
    made = {make_record_id() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(id_) for id_ in made} == {12}
    assert {char for id_ in made for char in id_} == {*string.ascii_lowercase, *string.digits}
