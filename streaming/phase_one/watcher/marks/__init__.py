"""Marks ledgers that brokers are about to drop (PIP-129), in a thread, and removes marks of ledgers that are gone.

- marking.py          a pass: forecasts of topics, and their marks
- signs.py            what reads show about topics; due_topics.py orders the topics
- mark_removal.py     removes marks
- agenda.py           topics by due time; failing.py topics that wait after errors
- marking_thread.py   runs it, so that the watcher waits for no broker
"""
