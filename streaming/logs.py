"""Logs of Python in the layouts of conf/log4j2.properties, so that Python and the JVM write a uniform log in UTC.

WARN is for what an operator should look at, ERROR for what an operator must act on.
"""

import logging
import os
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from streaming.terminal import plain_lines

if TYPE_CHECKING:
    from typing import Any

_LEVELS_OF_LOG4J = {"WARNING": "WARN", "CRITICAL": "FATAL"}
LEVEL_VARIABLE, FORMAT_VARIABLE = "LEDGER_REAPER_LOG_LEVEL", "LEDGER_REAPER_LOG_FORMAT"


class LogLevel(StrEnum):
    """The least severe records of this program that are logged. See _OF_LIBRARIES for those of libraries and Spark."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The layout of the log."""

    TEXT = "text"
    JSON = "json"


# One level less than of this program at debug and info, as in conf/log4j2.properties.
_OF_LIBRARIES = {
    LogLevel.DEBUG: logging.INFO,
    LogLevel.INFO: logging.WARNING,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


class Log4jFormatter(logging.Formatter):
    """`2025-01-31T23:59:59.123Z WARN ledger-reaper: text`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text. A line that starts with a blank continues the record before it."""
        record.level = _level(record)
        return plain_lines(super().format(record))


def json_formatter() -> logging.Formatter:
    """Return a formatter of one JSON object per record: time, level, logger, message, and exception if there is one."""
    from pythonjsonlogger.json import JsonFormatter

    class _Formatter(JsonFormatter):
        converter = staticmethod(time.gmtime)
        default_time_format, default_msec_format = Log4jFormatter.default_time_format, "%s.%03dZ"

        def process_log_record(self, log_data: "dict[str, Any]") -> "dict[str, Any]":
            log_data["level"] = _LEVELS_OF_LOG4J.get(log_data["level"], log_data["level"])
            return log_data

    names = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception"}
    return _Formatter(["asctime", "levelname", "name", "message"], rename_fields=names, json_ensure_ascii=True)


def start_logging(
    stream: TextIO | None = None, *, level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.TEXT
) -> None:
    """Log to the stream (default: stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(json_formatter() if form is LogFormat.JSON else Log4jFormatter())
    logging.basicConfig(level=_OF_LIBRARIES[level], handlers=[handler], force=True)
    logging.getLogger("ledger-reaper").setLevel(level.upper())
    # logs the URL of each request, and that of a webhook is a secret
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # py4j logs errors of foreachBatch with a traceback; the service itself logs them in a single line
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)


def choose_log(level: LogLevel, form: LogFormat) -> None:
    """Log in this way from now on, also in the JVM and the processes that this process starts."""
    os.environ |= {LEVEL_VARIABLE: level, FORMAT_VARIABLE: form}
    start_logging(level=level, form=form)


def continue_log() -> None:
    """Log as the process that started Spark chose (choose_log)."""
    level, form = os.environ.get(LEVEL_VARIABLE, LogLevel.INFO), os.environ.get(FORMAT_VARIABLE, LogFormat.TEXT)
    start_logging(level=LogLevel(level), form=LogFormat(form))


def _level(record: logging.LogRecord) -> str:
    return _LEVELS_OF_LOG4J.get(record.levelname, record.levelname)
