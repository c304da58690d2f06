"""The functions of OpenSSL for session tickets, for which pyOpenSSL has no method.

pyOpenSSL uses the OpenSSL of cryptography, whose wheels carry it inside of their extension module: its functions are
not exported, but its symbol table has their addresses. Other builds use a shared library. Where a function is not
found, there are no tickets, and each TLS connection has the whole handshake.
"""

import ctypes
import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.bindings import _rust
from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL

_SET_TICKET_KEYS = 59  # SSL_CTRL_SET_TLSEXT_TICKET_KEYS

TICKET_KEYS_BYTES = 80
"""The length of the keys of tickets: their name, and the keys of HMAC and cipher."""

_EXPORTED = "PyInit__rust"
_SYMBOL_TABLE = 2  # SHT_SYMTAB
_HEADER = struct.Struct("<6s34xQ10xHH2x")  # of a 64-bit ELF file: its beginning; place, size and number of the sections
_SECTION = struct.Struct("<4xI16xQQI4x8xQ")  # kind, place, size, the section with the names, size of an entry
_NAME, _VALUE = struct.Struct("<I"), struct.Struct("<8xQ")  # of a symbol


def set_ticket_keys(context: SSL.Context, keys: bytes | None) -> bool:
    """Let the new connections of a context get tickets under these keys, or none; return whether they get any."""
    # Not two, as by default: each ticket takes as long as a short response.
    set_number = _function("SSL_CTX_set_num_tickets", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    control = _function("SSL_CTX_ctrl", ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p)
    if set_number is None or control is None:
        return False
    pointer = int(Binding.ffi.cast("uintptr_t", context._context))  # noqa: SLF001 - there is no public name
    set_number(pointer, 0 if keys is None else 1)
    return keys is not None and bool(control(pointer, _SET_TICKET_KEYS, len(keys), keys))


@cache
def _function(name: str, *types: Any) -> Any:
    """Return a function of the OpenSSL that pyOpenSSL uses, with its types; None if it is not found."""
    path = str(_rust.__file__)
    library = ctypes.PyDLL(path)
    prototype = ctypes.PYFUNCTYPE(*types)
    with suppress(AttributeError):
        return prototype((name, library))  # of the shared library that it uses
    values = dict(_symbols(Path(path), (name, _EXPORTED)))
    if len(values) < len({name, _EXPORTED}):
        return None
    address = ctypes.cast(library[_EXPORTED], ctypes.c_void_p).value
    assert address is not None
    return prototype(address - values[_EXPORTED] + values[name])


def _symbols(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield names of the symbol table of an ELF file, and their values."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        kind, place, section_bytes, count = _HEADER.unpack_from(data)
        if kind != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return
        sections = [_SECTION.unpack_from(data, place + number * section_bytes) for number in range(count)]
        for kind, start, size, link, entry_bytes in sections:
            if kind == _SYMBOL_TABLE:
                _, names_start, names_bytes, *_ = sections[link]
                for name in names:
                    found = data.find(b"\0%b\0" % name.encode(), names_start, names_start + names_bytes)
                    if found >= 0:
                        wanted = _NAME.pack(found + 1 - names_start)
                        at = data.find(wanted, start, start + size)
                        while at >= 0 and (at - start) % entry_bytes:
                            at = data.find(wanted, at + 1, start + size)
                        if at >= 0:
                            yield name, _VALUE.unpack_from(data, at)[0]
