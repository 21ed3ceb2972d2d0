"""The safety lines of what reads lanes, for tests/mutation.py, with their tests."""

READER, EXISTING = "streaming/deletion/lanes/reader.py", "streaming/topics/existing.py"
PROGRESS, SLOW = "streaming/deletion/lanes/progress.py", "streaming/deletion/lanes/slow.py"
LANE_READS, SECTIONS = "streaming/queries/delivery/lane_reads.py", "streaming/config/sections.py"
INSTANCE, IDLE = "streaming/deletion/instance.py", "streaming/deletion/supervision/idle.py"
# the tests that must notice, by the changed file
TESTS = {
    READER: ("tests/unit/deletion/lanes",),
    PROGRESS: ("tests/unit/deletion/lanes",),
    SLOW: ("tests/unit/deletion/lanes",),
    EXISTING: ("tests/unit/topics/test_existing.py",),
    LANE_READS: ("tests/unit/queries/delivery/test_lane_reads.py",),
    SECTIONS: ("tests/unit/topics/test_existing.py",),
    IDLE: ("tests/unit/deletion/supervision/test_idle.py",),
}
LANE_READER = (
    (
        "messages of which a failed pass may have written receipts are left out",
        PROGRESS,
        "self._in_doubt.update(spans)",
        "pass",
    ),
    (
        "messages that an earlier run has processed are left out",
        PROGRESS,
        "first <= received.get(name, BEFORE_ALL) or ",
        "",
    ),
    (
        "a cursor that was moved back repeats nothing",
        PROGRESS,
        "max(self.reached(partition), stats.mark_deleted(self.subscription))",
        "stats.mark_deleted(self.subscription)",
    ),
    (
        "a lane that is still being read is not read again",
        SLOW,
        " or partition in self.in_work\n",
        "\n",
    ),
    (
        "a lane that waits for its slow reader is not read by a pass",
        READER,
        " or self._slow.has(partition)",
        "",
    ),
    (
        "a lane whose turn with others has failed is read alone",
        SLOW,
        "                        lane.is_alone = True\n",
        "                        pass\n",
    ),
    (
        "messages of an open transaction are not read by a lane's slow reader",
        SLOW,
        "AFTER_ALL if last is None or has_waited else last",
        "AFTER_ALL",
    ),
    (
        "messages of an open transaction wait although an earlier transaction was open for long",
        SLOW,
        "has_waited = before == last and self",
        "has_waited = before is not None and self",
    ),
    (
        "messages of an open transaction wait for a while",
        SLOW,
        "has_waited = before == last and self.monotonic() - since_s >= _OPEN_S",
        "has_waited = before == last",
    ),
    (
        "messages of an open transaction wait although a marker was waited for at the same place",
        SLOW,
        "            if not has_more:",
        "            if False:",
    ),
    (
        "a lane that could not be read completely is not acknowledged beyond that",
        READER,
        "            if end.fault:\n",
        "            if False:\n",
    ),
    (
        "an incomplete list of lanes forgets none",
        EXISTING,
        '            raise UnavailableError(f"can\'t read {path}: {node.detail}")\n',
        "            continue\n",
    ),
    (
        "an entry that the broker does not send ends a lane's read",
        LANE_READS,
        "                if entry.data is None:\n",
        "                if False:\n",
    ),
    (
        "the service refuses to start if ZooKeeper has no partitioned topics",
        EXISTING,
        "        if node is not None:\n            return\n",
        "        return\n",
    ),
    (
        "a lane that matches the pattern needs no claim of its own",
        SECTIONS,
        " and not self.is_lane(topic) and pattern.matches(topic)",
        " and pattern.matches(topic)",
    ),
    (
        "a run ends only if the list of lanes is fresh",
        READER,
        "            if self.monotonic() - self._listed_s > _FRESH_S:\n",
        "            if False:\n",
    ),
    (
        "a service is idle only if its lanes are",
        IDLE,
        "    return lanes is None or lanes.is_quiet\n",
        "    return True\n",
    ),
)
