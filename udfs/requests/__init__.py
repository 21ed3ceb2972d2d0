"""Requests as messages: their format, their topics, who may send them, and when they become retries or dead letters."""
