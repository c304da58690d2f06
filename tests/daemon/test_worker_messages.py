"""Lines of messages between a worker and its parent."""

from postd.daemon.worker_messages import LineBuffer


def test_stream_is_split_into_lines() -> None:
    buffer = LineBuffer(10)
    assert list(buffer.feed(b"a\nb")) == [b"a"]
    assert list(buffer.feed(b"c")) == []
    assert list(buffer.feed(b"d\n\n")) == [b"bcd", b""]
    assert list(buffer.flush()) == []
    assert list(buffer.feed(b"end")) == []
    assert list(buffer.flush()) == [b"end"]


def test_overlong_line_is_split() -> None:
    buffer = LineBuffer(10)
    lines = [line for _ in range(10) for line in buffer.feed(b"x" * 7)]
    assert lines == [b"x" * 10] * 6
    assert list(buffer.flush()) == [b"x" * 10]
