"""Reads the lanes (each tenant's own request topic) without a streaming query for each."""
