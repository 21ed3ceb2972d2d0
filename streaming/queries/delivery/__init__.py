"""Checks that the connector delivered every entry of a batch, and reads the missing entries without it."""
