"""The functions of OpenSSL for session tickets, for which pyOpenSSL has no method.

pyOpenSSL uses the OpenSSL of cryptography, whose wheels carry it inside of their extension module: its functions are
not exported, but the symbol table of the file has their addresses. Other builds use a shared library. What is found in
the file is called only if the same code is in memory: the file may have been replaced since it was loaded. Where a
function is not found, there are no tickets, and each TLS connection has the whole handshake.
"""

import mmap
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import PYFUNCTYPE, PyDLL, c_char_p, c_int, c_long, c_size_t, c_void_p, cast, string_at
from functools import cache
from pathlib import Path

from msgspec import Struct
from OpenSSL import SSL

from postd.twisted_private import openssl_behind

TICKET_KEYS_BYTES = 80
"""The length of the keys of tickets: their name, and the keys of HMAC and cipher."""

_SET_NUMBER = PYFUNCTYPE(c_int, c_void_p, c_size_t)  # SSL_CTX_set_num_tickets
_CONTROL = PYFUNCTYPE(c_long, c_void_p, c_int, c_long, c_char_p)  # SSL_CTX_ctrl
_SET_TICKET_KEYS = 59  # SSL_CTRL_SET_TLSEXT_TICKET_KEYS

_SYMBOL_TABLE = 2  # SHT_SYMTAB
_FUNCTION = 2  # STT_FUNC
_HEADER = struct.Struct("<6s34xQ10xHH2x")  # of a 64-bit ELF file: its beginning; place, size and number of the sections
_SECTION = struct.Struct("<4xI8xQQQI12xQ")  # kind, address, place, size, the section with the names, size of an entry
_NAME, _SYMBOL = struct.Struct("<I"), struct.Struct("<4xBxHQQ")  # kind, section, address, size


def set_ticket_keys(context: SSL.Context, keys: bytes | None) -> bool:
    """Let the new connections of a context get tickets under these keys, or none; return whether they get any."""
    functions = _ticket_functions(context)
    if functions is None:
        return False
    set_number, control = functions
    _, pointer = openssl_behind(context)
    fits = keys is not None and len(keys) == TICKET_KEYS_BYTES
    has_tickets = fits and bool(control(pointer, _SET_TICKET_KEYS, TICKET_KEYS_BYTES, keys))
    # Not two, as by default: each ticket takes as long as a short response.
    set_number(pointer, 1 if has_tickets else 0)
    return has_tickets


def can_set_ticket_keys(context: SSL.Context) -> bool:
    """Return whether OpenSSL's functions for tickets are found."""
    return _ticket_functions(context) is not None


def _ticket_functions(context: SSL.Context) -> tuple[Callable[..., int], Callable[..., int]] | None:
    file, pointer = openssl_behind(context)
    set_number = find_function(file, "SSL_CTX_set_num_tickets", _SET_NUMBER)
    control = find_function(file, "SSL_CTX_ctrl", _CONTROL)
    if set_number is None or control is None:
        return None
    # Without keys it returns their length, which is another one in LibreSSL.
    fits = control(pointer, _SET_TICKET_KEYS, 0, None) == TICKET_KEYS_BYTES
    return (set_number, control) if fits else None


@cache
def find_function(file: Path, name: str, prototype: Callable[..., Callable[..., int]]) -> Callable[..., int] | None:
    """Return a function of OpenSSL; None if it is not found."""
    with suppress(OSError, ValueError, LookupError, struct.error):  # of a file that is gone, or of another format
        library = PyDLL(str(file), os.RTLD_NOLOAD)
        with suppress(AttributeError):
            return prototype((name, library))  # of the shared library that it uses
        exported = entry_point(library, file)
        symbols = _symbols(file, (name, exported))
        known = cast(library[exported], c_void_p).value
        assert known is not None
        address = known - symbols[exported].address + symbols[name].address
        if _is_in_memory(symbols[exported].code, known, known) and _is_in_memory(symbols[name].code, address, known):
            return prototype(address)
    return None


def entry_point(library: PyDLL, file: Path) -> str:
    """Return the name of the function by which Python loads an extension module.

    Raises:
        LookupError: it has none.
    """
    module = file.name.partition(".")[0]
    for name in (f"PyInit_{module}", f"PyModExport_{module}"):  # the second since Python 3.15 (PEP 793)
        if hasattr(library, name):
            return name
    raise LookupError(module)


class _Symbol(Struct, frozen=True):
    """A function in the symbol table of an ELF file: its address, relative to that of the file, and its code."""

    address: int
    code: bytes


def _symbols(file: Path, names: tuple[str, ...]) -> Mapping[str, _Symbol]:
    """Return the functions of these names in the symbol table of an ELF file."""
    symbols: dict[str, _Symbol] = {}
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        beginning, place, section_bytes, count = _HEADER.unpack_from(data)
        if beginning != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return symbols
        sections = [_SECTION.unpack_from(data, place + number * section_bytes) for number in range(count)]
        for kind, _, start, size, link, entry_bytes in sections:
            if kind != _SYMBOL_TABLE:
                continue
            _, _, names_start, names_bytes, *_ = sections[link]
            for name in names:
                found = data.find(b"\0%b\0" % name.encode(), names_start, names_start + names_bytes)
                wanted = _NAME.pack(max(found + 1 - names_start, 0))
                at = data.find(wanted, start, start + size)
                while at >= 0 and (at - start) % entry_bytes:
                    at = data.find(wanted, at + 1, start + size)
                if found >= 0 and at >= 0:
                    information, section, address, code_bytes = _SYMBOL.unpack_from(data, at)
                    if information & 0xF == _FUNCTION and 0 < section < count:
                        code_at = address - sections[section][1] + sections[section][2]
                        symbols[name] = _Symbol(address, data[code_at : code_at + code_bytes])
    return symbols


def _is_in_memory(code: bytes, address: int, known: int) -> bool:
    """Return whether a function is at an address, in the code of the file that has another one at `known`."""
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        bounds, rights = line.split(maxsplit=2)[:2]
        start, end = (int(bound, 16) for bound in bounds.split(b"-"))
        if start <= known < end:
            is_inside = rights.startswith(b"r-x") and start <= address and address + len(code) <= end
            return is_inside and bool(code) and string_at(address, len(code)) == code
    return False
