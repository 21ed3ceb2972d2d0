"""Rings when a partition has messages that a subscription has not acknowledged, at no cost while it has none."""
