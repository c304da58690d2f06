"""Code that all stores share."""

from postd.store.base import revision_of_copy


def test_revision_of_a_copy_is_larger_if_the_clock_was_set_back() -> None:
    for revision in (8, 2**52):  # microseconds: the second is in the next century
        assert revision_of_copy(revision) > revision
