"""`each` runs all cases of a test, and names those that fail."""

import inspect

import pytest

from tests.cases import each


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    ran = []

    @each("outer", ["a", "b"])
    @each("one, other", [(1, 1), (1, 2), (3, 3)])
    def check(fixture: str, outer: str, one: int, other: int) -> None:
        ran.append((fixture, outer, one, other))
        if one == 3:
            pytest.fail("three")
        assert one == other

    assert [*inspect.signature(check).parameters] == ["fixture"]
    with pytest.raises(ExceptionGroup) as caught:
        check("x")
    assert ran == [("x", outer, *pair) for outer in "ab" for pair in ((1, 1), (1, 2), (3, 3))]
    message = str(caught.value)
    assert message.startswith("4 of 6 cases fail:")
    assert "\n  outer = 'b'; one, other = 1, 2\n" in message
    assert {type(error) for error in caught.value.exceptions} == {AssertionError}


def test_test_without_cases_is_refused() -> None:
    with pytest.raises(AssertionError, match="without cases"):
        each("x", [])
