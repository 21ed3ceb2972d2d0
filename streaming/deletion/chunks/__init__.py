"""The steps of a chunk: read its owners, sweep it, commit its receipts, evaluate them, and publish the copies."""
