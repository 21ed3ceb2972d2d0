"""The watcher: a name that vanishes from an owner's znode becomes a request, published exactly once.

- watcher.py          a turn: compares znodes with the names known before, and publishes due requests
- scan.py             reads everything, or the znodes that a hint names
- unlisted.py         ledgers that were created and never listed
- request_outbox.py   publishes requests; pulsar_publication.py is its port on Pulsar
- marks/              marks what brokers are about to drop
- watch_loop.py       runs the watcher by itself or in the service, and starts it again after errors
The state is streaming/state/watched.py; the rules are udfs/phase_one/vanished_names.py and kept_names.py.
"""
