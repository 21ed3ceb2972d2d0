"""Amounts in words, the same on the terminal and in the report."""

from udfs.audit import FindingClass

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def size_text(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    amount = float(size_bytes)
    for unit in _UNITS:
        if abs(amount) < _STEP or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _STEP
    raise AssertionError("unreachable")


def amount_text(finding_class: str, size_bytes: int) -> str:
    """Bytes of a class of findings; an open ledger's are known once it is closed."""
    return "not known" if finding_class == FindingClass.OPEN and not size_bytes else size_text(size_bytes)


def age_text(seconds: float) -> str:
    """93784 -> "1 d 2 h"."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole % 86_400 // 3600, whole % 3600 // 60
    if days >= 10:
        return f"{days} d"
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{whole} s"
