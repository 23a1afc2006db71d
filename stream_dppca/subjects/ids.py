"""One form for every spelling of a subject's id.

A subject that comes as `1` in one record and as `"1"` in another must not take two places: it would
count twice, and the guarantee would be halved. So every id becomes bytes by one rule, wherever it
comes from (a dict, a frame, an array, a message key):

- **Text** is taken in Unicode's normal form C, as UTF-8. **Bytes** that are UTF-8 are such text;
  other bytes are taken as they are.
- White space and NULs around the id are dropped, and so is a fraction of zeros: `"1.0"` is `"1"`,
  and `"-0"` is `"0"`.
- **A number** is its shortest decimal: `1`, `1.0`, `Decimal("1.00")` are `b"1"`, 2.5 is `b"2.5"`.
  A complex number without an imaginary part is its real part: one complex id makes a whole array
  complex.
- A UUID is its usual text.
- More than 64 bytes are replaced by their BLAKE2b hash of 32 bytes.
- **Not usable**: anything empty, longer than 512 bytes as it was sent (`MOST_BYTES`), None, NaN,
  infinite, a bool, a date, or of another type. The record is ignored.

The length is checked before anything else is done with an id. A normal form takes time that grows
with the square of the length (128 kB of accents take 11 seconds), and nothing else runs meanwhile:
one long id would stop a service. Of 512 bytes it takes a tenth of a millisecond at most.

Upper and lower case are different. Where the rule takes two ids for one, the two subjects share a
place: that costs a little accuracy, never privacy.

**Whole numbers from 2^53 on must come as integers or text.** A float cannot distinguish them. An
earlier step that turns a column of numbers into floats because one of them is missing
(`numpy.array`, a pandas frame made without a type) breaks the guarantee: one record would merge
all the others, and nothing here could notice it. Nullable, Arrow and object columns are exact, and
so are dicts.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np

#: Longer ids are not usable.
MOST_BYTES = 512
#: Longer ids are hashed.
LONGEST = 64
_AROUND = b" \t\n\r\v\f\0"
#: Bits of the largest whole numbers with `MOST_BYTES` digits.
_MOST_BITS = (10**MOST_BYTES).bit_length()


def canonical(value: Any) -> bytes | None:
    """The byte form of an id; None if it is not usable.

    Examples
    --------
    >>> [canonical(spelling) for spelling in (1, "1", b"1", 1.0, "1.0", " 1 ")]
    [b'1', b'1', b'1', b'1', b'1', b'1']
    >>> canonical("A1"), canonical(2.5), canonical(None), canonical(""), canonical(float("nan"))
    (b'A1', b'2.5', None, None, None)
    """
    try:  # whatever is wrong with an id, it is not usable
        return _BY_TYPE.get(type(value), _of_other)(value)
    except Exception:
        return None


def canonical_all(values: Iterable[Any]) -> list[bytes | None]:
    """The byte forms of many ids.

    Examples
    --------
    >>> canonical_all(np.array([3, 4])), canonical_all(["a", None])
    ([b'3', b'4'], [b'a', None])
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            return [None] * len(values)
        if values.dtype.kind in "iu":
            return list(values.astype("S21").tolist())
        values = values.tolist() if values.dtype.kind in "SUOfbc" else list(values)
    return [*map(canonical, values)]


def _of_text(text: str) -> bytes | None:
    if len(text) > MOST_BYTES:
        return None
    if text.isascii():
        return _tidy(text.encode())
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return None
    return _tidy(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass"))


def _of_bytes(raw: bytes) -> bytes | None:
    if len(raw) > MOST_BYTES:
        return None
    if raw.isascii():
        return _tidy(raw)
    try:
        return _of_text(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return _tidy(raw)


def _tidy(raw: bytes) -> bytes | None:
    raw = raw.strip(_AROUND)
    if raw.endswith(b"0") and b"." in raw:
        whole, fraction = raw.split(b".", 1)
        if not fraction.strip(b"0") and whole.lstrip(b"-").isdigit():
            raw = b"0" if whole == b"-0" else whole
    elif raw == b"-0":
        raw = b"0"
    return _short(raw) or None


def _short(raw: bytes) -> bytes | None:
    if len(raw) <= LONGEST:
        return raw
    return hashlib.blake2b(raw, digest_size=32).digest() if len(raw) <= MOST_BYTES else None


def _of_other(value: Any) -> bytes | None:
    if isinstance(value, bool | np.bool_ | np.timedelta64):
        return None
    if isinstance(value, str):
        return _of_text(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value[: MOST_BYTES + 1]))
    if isinstance(value, int | np.integer):
        return _of_whole(int(value))
    if isinstance(value, UUID):
        return str(value).encode()
    if isinstance(value, Decimal):
        if value.adjusted() > MOST_BYTES:  # its integer would fill the memory
            return None
        whole = value.is_finite() and value == value.to_integral_value()
        return _of_whole(int(value)) if whole else _of_float(float(value))
    if isinstance(value, float | np.floating):
        return _of_float(float(value))
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        return _of_float(float(value.real))
    return None


def _of_whole(number: int) -> bytes | None:
    if number.bit_length() > _MOST_BITS:  # digits take time that grows with their square
        return None
    return _short(b"%d" % number)


def _of_float(number: float) -> bytes | None:
    if number.is_integer():
        return _of_whole(int(number))
    return repr(number).encode() if math.isfinite(number) else None


_BY_TYPE: Final[Mapping[type, Callable[[Any], bytes | None]]] = {
    str: _of_text,
    bytes: _of_bytes,
    int: _of_whole,
    float: _of_float,
}
