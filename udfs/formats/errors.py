"""The error that every format raises."""


class FormatError(ValueError):
    """Stored bytes could not be parsed. The caller must take what they should say as unknown, never as empty."""
