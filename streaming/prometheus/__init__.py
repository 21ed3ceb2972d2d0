"""Metrics: what exists (table.py), their values (registry.py), and the HTTP server that shows them (server.py)."""
