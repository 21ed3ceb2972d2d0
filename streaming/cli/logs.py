"""Formats Python's log records like conf/log4j2.properties, so that Python and the JVM write a uniform log in UTC."""

import logging
import sys
import time
from typing import TextIO

from streaming.terminal import plain_lines

_LEVELS_OF_LOG4J = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class Log4jFormatter(logging.Formatter):
    """`2025-01-31T23:59:59.123Z WARN ledger-reaper: text`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. A line that starts with a blank continues the record before it."""
        record.level = _LEVELS_OF_LOG4J.get(record.levelname, record.levelname)
        return plain_lines(super().format(record))


def start_logging(stream: TextIO | None = None) -> None:
    """Log to the stream (default: stderr); other libraries log warnings only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Log4jFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ledger-reaper").setLevel(logging.INFO)
    # py4j logs errors of foreachBatch with a traceback; the service itself logs them in a single line
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
