"""Reads entries of partitions without the connector and without a durable subscription."""
