"""Phase one: durable requests before a ledger can leak, without a change to brokers.

- clients/python/          PIP-186's LedgerDeletionService, and PIP-129's marks over REST: a wheel of its own
- udfs/phase_one/          the rules: requests from arguments, metrics, marks as properties, vanished names
- deletable_ledgers.py     PIP-129's API for the watcher and for operators, who have ZooKeeper and state.dir
- receipts_by_message.py   receipts of requests, and waiting for them
- lines.py                 `ledger-reaper request --wait`
- watcher/                 continuous leak detection: a name that vanishes from a list becomes a request
"""
