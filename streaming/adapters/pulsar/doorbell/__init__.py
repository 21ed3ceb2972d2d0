"""Rings when a partition has new messages, at no cost while it has none."""
