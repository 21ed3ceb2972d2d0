"""The one error of every format: bytes that are not what they should be, so that nothing may be concluded from them."""


class FormatError(ValueError):
    """Stored bytes could not be parsed. The caller must treat what they stand for as unknown, never as empty."""
