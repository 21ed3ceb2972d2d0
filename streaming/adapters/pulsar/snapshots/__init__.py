"""Reads, writes and compacts the topics in which brokers keep snapshots of their transaction buffers."""
