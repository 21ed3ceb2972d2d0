"""Implements ports with the brokers' admin API: topics, loaded topics, policies, properties and trims."""
