"""The limit on the nesting depth of JSON texts."""

import json

from postd.protocol.nesting import DEPTH_MAX, is_too_deep
from tests.cases import each


def nest(depth: int, opening: str = "[", closing: str = "]", inner: str = "") -> str:
    return opening * depth + inner + closing * depth


@each("opening, closing, inner", [("[", "]", ""), ('{"a":', "}", "1"), ("[1, ", "]", "2")])
def test_depth_over_the_maximum_is_too_deep(opening: str, closing: str, inner: str) -> None:
    deepest = nest(DEPTH_MAX, opening, closing, inner)
    assert json.loads(deepest)
    assert not is_too_deep(deepest)
    assert is_too_deep(nest(DEPTH_MAX + 1, opening, closing, inner))


def test_flat_text_of_any_length_is_not_too_deep() -> None:
    assert not is_too_deep("[" + ",".join(["[{}]"] * 5000) + "]")


@each("string", ["[" * 1000, '\\"' + "{" * 1000, "\\\\\\" + '"' + "[" * 1000])
def test_brackets_in_a_string_do_not_count(string: str) -> None:
    assert not is_too_deep(f'["{string}"]')


def test_brackets_after_a_string_count() -> None:
    assert is_too_deep('["\\\\", ' + "[" * DEPTH_MAX)
    assert is_too_deep("[" * (DEPTH_MAX + 1) + '"')


def test_unterminated_string_is_not_too_deep() -> None:
    assert not is_too_deep('["' + "[" * 1000 + "\\")


def test_closed_levels_do_not_count() -> None:
    half = nest(DEPTH_MAX // 2)
    assert not is_too_deep(f"[{half}, {half}, {half}]")
    assert is_too_deep(f"[{half}, {nest(DEPTH_MAX)}]")
