"""`ledger-reaper watch`."""

from streaming.cli.options import Config, settings_of


def watch(config: Config) -> None:
    """Request the deletion of what topics, cursors and schemas name no more, until SIGTERM or SIGINT.

    Nothing is deleted here: a running service judges the requests.
    """
    settings = settings_of(config)
    from streaming.cli.arrow import load_datasets

    load_datasets()
    import signal
    import threading

    from streaming.phase_one.watcher.run import watch as watch_until

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_ignored: stop.set())
    watch_until(settings, stop)
