"""`ledger-reaper watch`."""

from streaming.cli.options import Config, settings_of
from streaming.cli.run_service import listen_alone


def watch(config: Config) -> None:
    """Request the deletion of ledgers that topics, cursors and schemas no longer name, until SIGTERM or SIGINT.

    The command deletes nothing: a running service judges the requests.
    """
    settings = settings_of(config)
    from streaming.coordination.lock import WATCH

    listener = listen_alone(settings, settings.service.name + WATCH)
    from streaming.arrow import load_datasets

    load_datasets()
    import threading

    from streaming.phase_one.watcher.watch_loop import watch as watch_until
    from streaming.signals import on_signals

    stop = threading.Event()
    with on_signals(lambda _number: stop.set()):
        watch_until(settings, stop, listener)
