"""Log lines of Python in the layout of conf/log4j2.properties, so that both sides of a run read as one log, in UTC."""

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
        """One record as text. A line that begins with a blank goes on with the record before it."""
        record.level = _LEVELS_OF_LOG4J.get(record.levelname, record.levelname)
        return plain_lines(super().format(record))


def start_logging(stream: TextIO | None = None) -> None:
    """Log to the stream (default: stderr); of other libraries only warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Log4jFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ledger-reaper").setLevel(logging.INFO)
    # py4j logs with a traceback what foreachBatch raised; the service itself says it in one line
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
