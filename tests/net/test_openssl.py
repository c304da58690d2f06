"""The functions of OpenSSL that pyOpenSSL has no method for."""

from pathlib import Path

import pytest
from OpenSSL import SSL

from postd.net import openssl
from postd.net.openssl import TICKET_KEYS_BYTES, set_ticket_keys


def test_keys_of_tickets_are_set() -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    assert set_ticket_keys(context, bytes(TICKET_KEYS_BYTES))
    assert not set_ticket_keys(context, None)


def test_keys_of_a_wrong_length_are_refused() -> None:
    assert not set_ticket_keys(SSL.Context(SSL.TLS_METHOD), b"short")


@pytest.mark.parametrize("content", [b"\x7fELF\1\1" + bytes(100), b"\x7fELF\2\1" + bytes(100)])
def test_file_without_the_symbol_has_no_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Then there are no tickets."""
    file = tmp_path / "stripped.so"
    file.write_bytes(content)
    symbols = openssl._symbols  # noqa: SLF001 - the file that it reads cannot be chosen otherwise
    monkeypatch.setattr(openssl, "_symbols", lambda _, names: symbols(file, names))
    monkeypatch.setattr(openssl, "_function", openssl._function.__wrapped__)  # noqa: SLF001 - what it finds is cached
    assert not set_ticket_keys(SSL.Context(SSL.TLS_METHOD), bytes(TICKET_KEYS_BYTES))
