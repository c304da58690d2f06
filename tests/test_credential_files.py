"""Secrets in the first line of a file."""

from pathlib import Path

from postd.credential_files import read_first_line
from tests.cases import each


@each(
    "content, secret",
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        (b" secret \r\nmore\n", "secret"),
        (b"\xef\xbb\xbfsecret\r\n", "secret"),  # as editors of Windows write it
        ("gehe\u00edm\n".encode(), "gehe\u00edm"),
        (b"", ""),
        (b"\xef\xbb\xbf\n", ""),
    ],
)
def test_secret_is_the_first_line(tmp_path: Path, content: bytes, secret: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert read_first_line(str(tmp_path / "secret")) == secret
