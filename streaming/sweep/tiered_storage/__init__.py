"""The sweep of offloaded objects in buckets, and the check of these objects before their ledger is deleted."""
