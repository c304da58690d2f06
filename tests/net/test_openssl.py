"""The functions of OpenSSL that pyOpenSSL has no method for."""

from ctypes import PyDLL
from functools import partial
from pathlib import Path
from shutil import copyfile

import pytest
from OpenSSL import SSL

from postd.net import openssl
from postd.net.openssl import TICKET_KEYS_BYTES, can_set_ticket_keys, set_ticket_keys
from postd.twisted_private import openssl_behind


def test_keys_of_tickets_are_set() -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    assert can_set_ticket_keys(context)
    assert set_ticket_keys(context, bytes(TICKET_KEYS_BYTES))
    assert not set_ticket_keys(context, None)


def test_keys_of_a_wrong_length_are_refused() -> None:
    assert not set_ticket_keys(SSL.Context(SSL.TLS_METHOD), b"short")


def test_library_with_keys_of_another_length_has_no_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as LibreSSL."""
    monkeypatch.setattr(openssl, "TICKET_KEYS_BYTES", 48)
    context = SSL.Context(SSL.TLS_METHOD)
    assert not can_set_ticket_keys(context)
    assert not set_ticket_keys(context, bytes(48))


@pytest.mark.parametrize("content", [b"", b"\x7fELF\1\1" + bytes(100), b"\x7fELF\2\1" + bytes(100), None])
def test_file_without_the_symbol_has_no_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Then there are no tickets."""
    file = tmp_path / "stripped.so"
    if content is not None:
        file.write_bytes(content)
    symbols = openssl._symbols  # noqa: SLF001 - the file that it reads cannot be chosen otherwise
    monkeypatch.setattr(openssl, "_symbols", lambda _, names: symbols(file, names))
    monkeypatch.setattr(openssl, "find_function", openssl.find_function.__wrapped__)
    context = SSL.Context(SSL.TLS_METHOD)
    assert not can_set_ticket_keys(context)
    assert not set_ticket_keys(context, bytes(TICKET_KEYS_BYTES))


@pytest.mark.parametrize("name", ["SSL_CTX_ctrl", ""], ids=["the function", "the entry point"])
def test_file_that_was_replaced_after_it_was_loaded_has_no_function(tmp_path: Path, name: str) -> None:
    """What is at the address of the new file would be another function."""
    original, _ = openssl_behind(SSL.Context(SSL.TLS_METHOD))
    file, new = tmp_path / original.name, tmp_path / "new"
    copyfile(original, file)
    library = PyDLL(str(file))  # a second copy, of which nothing is called
    find = partial(openssl.find_function.__wrapped__, file, "SSL_CTX_ctrl", openssl._CONTROL)  # noqa: SLF001 - as above
    assert find() is not None
    content = file.read_bytes()
    name = name or openssl.entry_point(library, file)
    code = openssl._symbols(file, (name,))[name].code  # noqa: SLF001 - as above
    new.write_bytes(content.replace(code, code[::-1]))
    new.replace(file)
    assert find() is None
    del library


def test_library_without_the_function_that_is_no_module_of_python_has_none() -> None:
    (libc,) = {
        Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line
    }
    assert openssl.find_function.__wrapped__(libc, "SSL_CTX_ctrl", openssl._CONTROL) is None  # noqa: SLF001 - as above


def test_file_that_is_not_loaded_is_not_loaded(tmp_path: Path) -> None:
    original, _ = openssl_behind(SSL.Context(SSL.TLS_METHOD))
    file = tmp_path / original.name
    copyfile(original, file)
    assert openssl.find_function.__wrapped__(file, "SSL_CTX_ctrl", openssl._CONTROL) is None  # noqa: SLF001 - as above
    assert str(file) not in Path("/proc/self/maps").read_text()
