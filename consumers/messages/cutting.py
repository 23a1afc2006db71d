"""Cuts messages that hold several subjects into pieces, without looking into them.

One message may hold many hosts. Each piece is parsed by itself afterwards, so that one host's bad
text is missing for that host only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

#: Texts and brackets of JSON. The quantifiers never go back: a text without an end takes no longer.
_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def unframed(value: bytes) -> bytes:
    """Return JSON without the frame of a Schema Registry: a zero and four bytes."""
    return value[5:] if value[:1] == b"\0" else value


def protobuf_pieces(value: bytes) -> list[bytes]:
    """The elements of the repeated field 1 of a message; those before its damage, if it has some.

    Examples
    --------
    >>> protobuf_pieces(bytes([10, 2, 65, 66, 16, 7, 10, 1, 67, 10, 9, 1]))
    [b'AB', b'C']
    """
    pieces, at = [], 0
    try:
        while at < len(value):
            tag, at = varint(value, at)
            kind = tag & 7
            if kind == 2:
                size, at = varint(value, at)
                if at + size > len(value):
                    break
                if tag == 10:
                    pieces.append(value[at : at + size])
                at += size
            elif kind == 0:
                _, at = varint(value, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                break
    except IndexError:  # cut in a number
        pass
    return pieces


def varint(value: bytes, at: int, digits: int = 10) -> tuple[int, int]:
    """A number of seven bits per byte, the lowest first, and its end."""
    number = shift = 0
    while shift < 7 * digits:
        byte = value[at]
        at += 1
        if byte < 128:
            return number | byte << shift, at
        number |= (byte & 127) << shift
        shift += 7
    raise IndexError  # too long, as if it had no end


def whole_number(value: bytes, at: int, digits: int = 10) -> tuple[int, int]:
    """A number that may be negative (zigzag), and its end."""
    number, at = varint(value, at, digits)
    return (number >> 1) ^ -(number & 1), at


def json_cutter(member: str) -> Callable[[bytes], list[bytes]]:
    """Make a function that cuts an array, or the array in a member of an object, into elements.

    An object without this member is one piece.

    Examples
    --------
    >>> cut = json_cutter("metrics")
    >>> cut(b'{"metrics": [{"a": 1}, {"a": 2}]}'), cut(b'[{"a": 3}]'), cut(b'{"a": 4}')
    ([b'{"a": 1}', b'{"a": 2}'], [b'{"a": 3}'], [b'{"a": 4}'])
    """
    array = msgspec.json.Decoder(list[msgspec.Raw])
    fields: list[Any] = [("pieces", list[msgspec.Raw] | None, None)]
    holder: Any = msgspec.json.Decoder(
        msgspec.defstruct("Cut", fields, rename={"pieces": member}, gc=False)
    )

    def cut(value: bytes) -> list[bytes]:
        value = unframed(value)
        try:
            found = array.decode(value) if value[:1] == b"[" else holder.decode(value).pieces
            return [value] if found is None else [bytes(piece) for piece in found]
        except Exception:  # damaged, or one piece nests too deeply: find the others
            return _pieces(value, b'"%b"' % member.encode())

    return cut


def _pieces(value: bytes, member: bytes) -> list[bytes]:
    """As the parser cuts, by counting brackets."""
    pieces = []
    depth = start = 0
    array: int | None = None  # the depth of the elements
    text = b""
    for found in _TOKENS.finditer(value):
        token = found[0]
        if token in b"[{":
            depth += 1
            if depth == array:
                start = found.start()
            elif token == b"[" and array is None and (depth, text) in ((1, b""), (2, member)):
                array = depth + 1
        elif token in b"]}":
            if depth == array:
                pieces.append(value[start : found.end()])
            depth -= 1
            if array is not None and depth < array - 1:
                break
        elif depth == 1:
            text = token
    return pieces
