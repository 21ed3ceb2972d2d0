"""Java's UUID: two signed 64-bit halves in Pulsar's metadata, lower-case text in object names."""

import re

_MASK = (1 << 64) - 1
_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uuid_text(msb: int, lsb: int) -> str:
    """Return the text form, as java.util.UUID(msb, lsb).toString() does."""
    digits = f"{msb & _MASK:016x}{lsb & _MASK:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def uuid_halves(text: str) -> tuple[int, int]:
    """Return (msb, lsb), signed. Raises ValueError for anything but the lower-case text form."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:60]!a} is no UUID")
    digits = text.replace("-", "")
    return _signed(int(digits[:16], 16)), _signed(int(digits[16:], 16))


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half
