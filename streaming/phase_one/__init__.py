"""Phase one: requests that exist before anything can be lost, without a change to a broker.

Where to look:
- udfs/phase_one/      the rules: requests from arguments, metrics, marks as properties, what vanished from a list and
                       what is kept of one
- client.py            PIP-186's LedgerDeletionService for producers; async_client.py is the same for asyncio
- marks.py             PIP-129's API: marks in a topic's properties, and their removal through the sweep
- receipts.py          what became of requests, and waiting for it
- lines.py             `ledger-reaper request --wait`
- watcher/             continuous leak detection: what lists name no more becomes a request
"""
