"""The watcher: what an owner names no more becomes a request, published once.

Where to look:
- watcher.py      one turn: what has changed, what vanished, what is due
- look.py         reads everything, or what a hint names
- made.py         ledgers that were made and never listed
- outbox.py       requests, each published once; publication.py is its port on Pulsar
- marking.py      marks what brokers are about to drop, and works marks off; ahead.py is what it hears of the watching,
                  agenda.py when whose turn is
- run.py          by itself, or beside the service; begins anew after errors
The state is streaming/state/watched.py; the rules are udfs/phase_one/watched.py and kept_names.py.
"""
