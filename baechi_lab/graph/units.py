"""Bytes, microseconds and counts as text.

Sizes are shown in powers of 1000, as on data sheets of devices and links: 1 GB is 10**9 bytes, and a link of 16 GB/s moves it in
1/16 s. An input may be in GiB; a limit that was given so is shown in both units.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from ..checks import finite
from ..errors import InvalidInput, in_short

MOST_US = 1e150
"""Times of a graph or link, in microseconds, and speeds go up to this: sums and products of a few stay finite."""

_FACTOR = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


LEAST_WITHOUT_UNIT = 100
"""A text of fewer bytes than these names their unit: nobody has a device of 8 bytes, many mean 8 GB."""


def parse_bytes(value: int | float | str, field: str = "memory_bytes") -> int:
    """Reads bytes from a number or a text such as `8GB`, `2400MB`, `8GiB`; a text of only a small number is rejected.

    >>> parse_bytes("2.5kB")
    2500
    """
    original = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgt]i?)?(b)?\s*", value, re.IGNORECASE)
        if not match:
            raise InvalidInput(f"{field}: {value!r} is not an amount of memory; write for example 8GB, 2400MB or 8GiB")
        digits, _, exponent = match[1].lower().partition("e")
        if len(exponent.lstrip("0")) > 3:  # more than a Decimal may hold
            value = 0 if not Decimal(digits) else 2**64
        else:
            size = Decimal(match[1]) * _FACTOR[(match[2] or "").lower()]
            if 0 < size < LEAST_WITHOUT_UNIT and match[2] is None and match[3] is None:
                raise InvalidInput(
                    f"{field} is {value!r}, which is {size:f} bytes; did you mean {size:f}GB? (write {size:f}B for bytes)"
                )
            value = int(size) if size < 2**64 else 2**64
    elif isinstance(value, bool) or finite(value) is None:
        raise InvalidInput(
            f"{field}: {in_short(value)} is not a number of bytes; give a number of at least 0, or a text such as 8GB"
        )
    if int(value) >= 2**63:
        raise InvalidInput(f"{field}: {in_short(original)} is too large; a number of bytes must fit into 64 bits")
    return int(value)


def format_bytes(value: float) -> str:
    """Returns bytes as text: `1234567` -> `1.23 MB`."""
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def format_bytes_beside(value: float, largest: float) -> str:
    """Formats bytes in the unit that suits the largest of those that they stand beside.

    What is less than a ten-thousandth of that unit has its own.

    >>> [format_bytes_beside(value, 2_500_000) for value in (2_500_000, 64_000, 4_000, 4, 0)]
    ['2.50 MB', '0.06 MB', '0.004 MB', '4 B', '0 MB']
    """
    factor, unit = next(((f, u) for f, u in _BYTE_UNITS if abs(largest) >= f), (1.0, "B"))
    size = value / factor
    if value == 0 or unit == "B":
        return f"{size:.0f} {unit}"
    if abs(size) < 1e-4:
        return format_bytes(value)
    return f"{size:.2f} {unit}" if abs(size) >= 0.01 else f"{size:.1g} {unit}"


_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def exact_bytes(size: int) -> str:
    """Returns a size in bytes as text, in the largest unit that is exact; GB may have up to three decimals.

    >>> exact_bytes(8 << 30), exact_bytes(2_400_000_000), exact_bytes(7)
    ('8 GiB', '2.4 GB', '7 B')
    """
    if size % 2**30 and size > 10**9 and size % 10**6 == 0:
        return f"{size / 10**9:.12g} GB"
    units = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3))
    return next((f"{size // unit} {name}" for name, unit in units if size and size % unit == 0), f"{size} B")


def format_limit(size: float) -> str:
    """Returns a limit without needless decimals; one in whole GiB or MiB, which many type, in that unit as well.

    >>> format_limit(8 << 30), format_limit(8_000_000_000), format_limit(12_345_678_901)
    ('8.59 GB = 8 GiB', '8 GB', '12.35 GB')
    """
    exact = exact_bytes(int(size))
    if float(exact.split()[0]) >= 10_000 or exact.endswith("KiB"):
        return format_bytes(size)
    return f"{format_bytes(size)} = {exact}" if exact.endswith("iB") else exact


def plain_number(value: float) -> str:
    """Formats a number with about four digits, or as a whole number.

    >>> plain_number(1_326_912.7), plain_number(913.44), plain_number(0.5)
    ('1,326,913', '913.4', '0.5')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plural(noun: str, count: int) -> str:
    """Returns the noun as it stands behind a count.

    >>> [f"{count} {plural('op', count)}" for count in (0, 1, 2)], plural("batch", 2)
    (['0 ops', '1 op', '2 ops'], 'batches')
    """
    return noun if count == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def shorten(text: str, limit: int = 36) -> str:
    """Shortens a text to `limit` letters by leaving out its middle, since names and paths differ at their ends.

    >>> shorten("data/a-very-long-folder/graph.json.gz", 20)
    'data/a…graph.json.gz'
    """
    if len(text) <= limit:
        return text
    tail = 2 * limit // 3
    return f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"


def times_in_one_unit(values: Sequence[float]) -> list[str]:
    """Formats microseconds that stand beside each other in the unit that suits the largest of them.

    >>> times_in_one_unit([1.02e6, 980_100.0, 1_500.0]), times_in_one_unit([0.0, float("nan")])
    (['1.02 s', '0.98 s', '0.0015 s'], ['0 us', 'unknown'])
    """
    largest = max((abs(value) for value in values if value == value), default=0.0)
    return [format_us_beside(value, largest) for value in values]


def format_us_beside(value: float, largest: float) -> str:
    """Formats microseconds in the unit that suits the largest of those that they stand beside.

    What is shorter than a thousandth of that unit has its own.

    >>> [format_us_beside(value, 241_290.0) for value in (241_290.0, 20.92, 0.25, 0.0)]
    ['241.29 ms', '0.0209 ms', '0.25 us', '0 us']
    """
    _, factor, unit = _time_unit(largest)
    scaled = value / factor
    if not abs(scaled) >= 1e-3:
        return format_us(value)
    return f"{scaled:.2f} {unit}" if abs(scaled) >= 0.1 else f"{scaled:.3g} {unit}"


_TIME_UNITS = ((1e6, 1e6, "s"), (1e3, 1e3, "ms"), (0.1, 1.0, "us"), (1e-5, 1e-3, "ns"))
"""From how many microseconds on a unit is used, its microseconds and its name."""


def _time_unit(value: float) -> tuple[float, float, str]:
    return next((unit for unit in _TIME_UNITS if abs(value) >= unit[0]), _TIME_UNITS[-1])


def format_us(value: float) -> str:
    """Microseconds in the unit that suits them: `1234.5` -> `1.23 ms`.

    >>> [format_us(value) for value in (2.5e6, 12.0, 0.25, 0.004, 0.0)]
    ['2.50 s', '12.00 us', '0.25 us', '4.00 ns', '0 us']
    """
    least, factor, unit = _time_unit(value)
    if abs(value) >= least:
        return f"{value / factor:.2f} {unit}"
    return "0 us" if value == value else "unknown"
