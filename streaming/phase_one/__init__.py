"""Phase one: durable requests before a ledger can leak, without a change to brokers.

- udfs/phase_one/          the rules: requests from arguments, metrics, marks as properties, vanished names
- client.py                PIP-186's LedgerDeletionService for producers; async_client.py is the same for asyncio
- deletable_ledgers.py     PIP-129's API: marks in a topic's properties, and their removal through the sweep
- receipts_by_message.py   receipts of requests, and waiting for them
- lines.py                 `ledger-reaper request --wait`
- watcher/                 continuous leak detection: a name that vanishes from a list becomes a request
"""
