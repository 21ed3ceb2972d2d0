"""Metrics: which exist (table.py), and their values (registry.py).

Prometheus fetches them from server.py, which also answers probes (health.py); otlp.py sends them to a collector.
"""
