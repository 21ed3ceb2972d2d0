"""`ledger-reaper explain`: what a ledger or a topic stores, what is missing, and what can be done about it."""
