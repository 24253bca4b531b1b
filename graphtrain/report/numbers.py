"""Numbers for people to read."""

from __future__ import annotations

import math

_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> duration(-1), duration(133), duration(3 * 3600 + 5 * 60 + 59), duration(52 * 3600), duration(float("nan"))
    ('0 s', '2 min 13 s', '3 h 05 min', '2 d 4 h', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not minutes:
        return f"{whole} s"
    if not hours:
        return f"{minutes} min {whole % 60:02d} s"
    return f"{hours} h {minutes % 60:02d} min" if not days else f"{days} d {hours % 24} h"


def count(value: float) -> str:
    """A finite count, whole or fractional.

    >>> count(3), count(3.0), count(1.5)
    ('3', '3', '1.50')
    """
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


def scaled(value: float) -> str:
    """A number of three digits with the prefix of its thousands; a whole one below a thousand keeps its own.

    >>> scaled(0.347), scaled(8.1249), scaled(7), scaled(26_000), scaled(1_240_000), scaled(999.7), scaled(0)
    ('0.347', '8.12', '7', '26.0 k', '1.24 M', '1.00 k', '0')
    """
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    power = 0
    while abs(value) >= 999.5 and power < len(_THOUSANDS) - 1:
        value, power = value / 1000, power + 1
    return f"{f'{value:#.3g}'.rstrip('.') if value else 0} {_THOUSANDS[power]}".rstrip()


def rate(per_second: float, unit: str = "") -> str:
    """A number per second.

    >>> rate(812), rate(26_000), rate(26_000, "samples"), rate(3.5, "batches")
    ('812/s', '26.0 k/s', '26.0 k samples/s', '3.50 batches/s')
    """
    return f"{scaled(per_second)} {unit}".rstrip() + "/s"


def size(number_of_bytes: float) -> str:
    """An amount of memory.

    >>> size(512), size(4096), size(1.2 * 2**30), size(1023.96 * 2**20)
    ('512 B', '4.0 KiB', '1.2 GiB', '1.0 GiB')
    """
    value, unit = float(number_of_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def metric(value: float) -> str:
    """A value in four significant digits; whole numbers below a million keep all of theirs.

    >>> metric(0.042317), metric(1e-05), metric(54321), metric(54321.7), metric(7.0), metric(123456789.0)
    ('0.04232', '1e-05', '54321', '54322', '7', '1.235e+08')
    """
    if math.isfinite(value) and 1e4 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.4g}"


def share(part: float) -> str:
    """A part of a whole, given from 0 to 1.

    >>> share(0.084), share(1), share(0.002), share(0)
    ('8 %', '100 %', '<1 %', '0 %')
    """
    return "<1 %" if 0 < part < 0.005 else f"{100 * part:.0f} %"
