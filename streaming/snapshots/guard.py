"""The guard: a durable subscription on a namespace's segments topic, which keeps what is named from being trimmed.

A broker reads a segment at the place that the index names, and system topics are compacted by themselves. The cursor of
compaction is the segments topic's only durable one, so without retention the broker trims ledgers that indexes name;
a topic of which a named segment is gone does not load again (seen on Pulsar 4.0.8, docs/snapshots.md).
"""

GUARD = "ledger-reaper-guard"
