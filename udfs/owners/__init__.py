"""Rules about a ledger's owner: which znode it is, what the owner refers to, and when its absence is in doubt."""
