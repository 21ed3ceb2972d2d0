"""Runs moto's S3 so that its objects survive a restart of the sandbox.

moto keeps objects only in memory. This server saves its buckets to a file after changes and at SIGTERM. A killed server
loses the writes since the last save.
"""

import argparse
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

SAVE_SECONDS = 0.3
# After a save, rest for this many times its duration, but at least SAVE_SECONDS. A save takes longer the more objects
# there are, so many objects are saved less often.
REST_PER_SAVE = 20
_READS = frozenset({"GET", "HEAD", "OPTIONS"})

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Keeper:
    """Forwards requests to moto, writes one at a time, and saves the buckets after writes."""

    def __init__(self, app: App, path: Path) -> None:
        self._app = app
        self._path = path
        self._lock = threading.RLock()
        self._changed = False

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handle a WSGI request."""
        if environ["REQUEST_METHOD"] in _READS:
            return self._app(environ, start_response)
        with self._lock:
            self._changed = True
            return self._app(environ, start_response)

    def load(self) -> None:
        """Load the buckets that an earlier server saved, if any."""
        if not self._path.is_file():
            return
        # Written by save() into the cluster's own folder.
        for (account, partition), buckets in pickle.loads(self._path.read_bytes()).items():  # noqa: S301
            s3_backends[account][partition].buckets.update(buckets)
            for name in buckets:
                s3_backends.bucket_accounts[name] = (partition, account)

    def save(self) -> None:
        """Save all buckets atomically if any has changed."""
        with self._lock:
            if not self._changed:
                return
            state = {
                (account, partition): dict(backend.buckets)
                for account, partitions in s3_backends.items()
                for partition, backend in partitions.items()
            }
            partial = self._path.with_suffix(".part")
            partial.write_bytes(pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL))
            partial.replace(self._path)
            self._changed = False

    def save_forever(self) -> None:
        """Save in the background until the process ends."""
        while True:
            started = time.monotonic()
            self.save()
            time.sleep(max(SAVE_SECONDS, REST_PER_SAVE * (time.monotonic() - started)))


def s3_app() -> App:
    """Create moto's S3 as a WSGI application without moto's other services."""
    # moto's own dispatcher guesses the service from the signature. It mistakes some signatures of jclouds (SigV2,
    # base64 with slashes) for the credential scope of a service that does not exist, and answers 500.
    app: App = create_backend_app("s3")
    return app


def main(arguments: list[str]) -> None:
    """Serve S3 until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("state", type=Path)
    options = parser.parse_args(arguments)
    keeper = Keeper(s3_app(), options.state)
    keeper.load()

    def end(_number: int, _frame: FrameType | None) -> None:
        keeper.save()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=keeper.save_forever, daemon=True).start()
    run_simple(options.host, options.port, keeper, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(sys.argv[1:])
