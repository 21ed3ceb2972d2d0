"""Reads a cluster's ledgers, owners, policies and bookies, and divides the bytes of each topic."""
