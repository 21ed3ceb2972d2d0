"""The error that every format raises."""


class FormatError(ValueError):
    """Stored bytes could not be parsed. The caller must treat their content as unknown, never as empty."""
