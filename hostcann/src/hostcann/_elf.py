"""Hides symbols of a shared library: what an older CANN looks like to a program that looks one up.

A hidden symbol keeps its place in the symbol table, under the name without its first letter. The table's hash values
are left as they were, so the old name is found in no way: not by the linker, not by `dlsym`.
"""

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_SECTION_DYNSYM = 11
_UNDEFINED_SECTION = 0


class _Symbol(NamedTuple):
    name: str
    defined: bool
    name_field: int  # where the entry stores the offset of its name, in the file


def _dynamic_symbols(image: bytes) -> Iterator[_Symbol]:
    if image[:4] != b"\x7fELF" or image[4] != 2 or image[5] != 1:
        raise ValueError("library must be a 64-bit little-endian ELF file")
    (section_table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)

    def section(index: int) -> tuple[int, int, int, int]:
        base = section_table + index * entry_size
        (kind,) = struct.unpack_from("<I", image, base + 4)
        offset, size, link = struct.unpack_from("<QQI", image, base + 24)
        return kind, offset, size, link

    for index in range(count):
        kind, offset, size, link = section(index)
        if kind != _SECTION_DYNSYM:
            continue
        strings = section(link)[1]
        for field in range(offset, offset + size, 24):
            name_offset, _info, _other, defined_in = struct.unpack_from("<IBBH", image, field)
            end = image.index(b"\0", strings + name_offset)
            name = image[strings + name_offset : end].decode()
            yield _Symbol(name, defined_in != _UNDEFINED_SECTION, field)


def exported_symbols(library: Path) -> set[str]:
    """Returns the names that a shared library defines for others."""
    return {symbol.name for symbol in _dynamic_symbols(library.read_bytes()) if symbol.defined and symbol.name}


def hide_symbols(library: Path, names: Collection[str], target: Path) -> None:
    """Writes a copy of `library` to `target` in which no symbol has one of `names`."""
    image = bytearray(library.read_bytes())
    for symbol in list(_dynamic_symbols(bytes(image))):
        if symbol.defined and symbol.name in names:
            (name_offset,) = struct.unpack_from("<I", image, symbol.name_field)
            struct.pack_into("<I", image, symbol.name_field, name_offset + 1)
    target.write_bytes(image)
