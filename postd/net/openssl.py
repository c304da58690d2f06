"""The functions of OpenSSL for session tickets, for which pyOpenSSL has no method.

pyOpenSSL uses the OpenSSL of cryptography, whose wheels carry it inside of their extension module: its functions are
not exported, but its symbol table has their addresses. Other builds use a shared library. Where a function is not
found, there are no tickets, and each TLS connection has the whole handshake.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from ctypes import PYFUNCTYPE, PyDLL, c_char_p, c_int, c_long, c_size_t, c_void_p, cast
from functools import cache
from pathlib import Path
from typing import Any

from OpenSSL import SSL

from postd.twisted_private import openssl_behind

_SET_TICKET_KEYS = 59  # SSL_CTRL_SET_TLSEXT_TICKET_KEYS

TICKET_KEYS_BYTES = 80
"""The length of the keys of tickets: their name, and the keys of HMAC and cipher."""

_SYMBOL_TABLE = 2  # SHT_SYMTAB
_HEADER = struct.Struct("<6s34xQ10xHH2x")  # of a 64-bit ELF file: its beginning; place, size and number of the sections
_SECTION = struct.Struct("<4xI16xQQI4x8xQ")  # kind, place, size, the section with the names, size of an entry
_NAME, _VALUE = struct.Struct("<I"), struct.Struct("<8xQ")  # of a symbol


def set_ticket_keys(context: SSL.Context, keys: bytes | None) -> bool:
    """Let the new connections of a context get tickets under these keys, or none; return whether they get any."""
    file, pointer = openssl_behind(context)
    # Not two, as by default: each ticket takes as long as a short response.
    set_number = _function(file, "SSL_CTX_set_num_tickets", c_int, c_void_p, c_size_t)
    control = _function(file, "SSL_CTX_ctrl", c_long, c_void_p, c_int, c_long, c_char_p)
    if set_number is None or control is None:
        return False
    set_number(pointer, 0 if keys is None else 1)
    return keys is not None and bool(control(pointer, _SET_TICKET_KEYS, len(keys), keys))


@cache
def _function(file: Path, name: str, *types: Any) -> Any:
    """Return a function of OpenSSL with its types; None if it is not found."""
    library, prototype = PyDLL(str(file)), PYFUNCTYPE(*types)
    with suppress(AttributeError):
        return prototype((name, library))  # of the shared library that it uses
    exported = f"PyInit_{file.name.partition('.')[0]}"
    values = dict(_symbols(file, (name, exported)))
    if len(values) < len({name, exported}):
        return None
    address = cast(library[exported], c_void_p).value
    assert address is not None
    return prototype(address - values[exported] + values[name])


def _symbols(file: Path, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield names of the symbol table of an ELF file, and their values."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
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
