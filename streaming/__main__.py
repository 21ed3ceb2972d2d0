"""Entry point of `ledger-reaper`, `python -m streaming` and spark-submit; the commands are in streaming/cli.

Exit codes: 0 done, 1 fault of ours, 2 configuration, 3 a service is unreachable, 4 refused for safety.
"""

import sys

if not __package__ and sys.path:
    # spark-submit starts this file by its path: Python must not find our modules (metrics, …) as top-level ones
    sys.path.pop(0)

from typing import NoReturn

import typer

from streaming.cli.logs import start_logging
from streaming.cli.main import app
from streaming.errors import ReaperError
from streaming.spark.submitted import is_submitted


def main() -> None:
    """Run one command; an error of this program becomes one clear line and an exit code."""
    start_logging()
    try:
        app(prog_name="ledger-reaper")
    except ReaperError as error:
        typer.echo(f"ledger-reaper: {error}", err=True)
        _leave(error.exit_code)
    except SystemExit as ended:
        _leave(ended.code)


def _leave(code: str | int | None) -> NoReturn:
    if is_submitted() and "pyspark" in sys.modules:
        from streaming.spark.session import end_jvm

        end_jvm(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)


if __name__ == "__main__":
    main()
