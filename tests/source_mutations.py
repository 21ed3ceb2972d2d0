"""The safety lines of the Spark source for tests/mutation.py, with the tests that must notice."""

STREAM, READ = "streaming/adapters/pulsar/source/stream.py", "streaming/adapters/pulsar/source/batch_read.py"
SHARING = "streaming/adapters/pulsar/source/sharing.py"
COUNTING = "streaming/adapters/pulsar/source/counting.py"
PLANNING = "udfs/pulsar_source/planning.py"
REQUEST_READS = "streaming/queries/delivery/request_reads.py"
REQUEST_SOURCE = "streaming/queries/delivery/request_source.py"
BATCHES, LOST_ENTRIES = "streaming/queries/delivery/source_batches.py", "streaming/state/notes/lost_entries.py"
MEMORY = "streaming/reconcile/memory.py"
_STREAM_TESTS = ("tests/unit/adapters/pulsar/source/test_stream.py",)
# the tests that must notice, by the changed file
TESTS = {
    STREAM: _STREAM_TESTS,
    SHARING: _STREAM_TESTS,
    COUNTING: _STREAM_TESTS,
    READ: ("tests/unit/adapters/pulsar/source/test_batch_read.py",),
    PLANNING: ("tests/unit/udfs/pulsar_source/test_planning.py",),
    REQUEST_READS: ("tests/unit/queries/delivery/test_request_reads.py",),
    REQUEST_SOURCE: ("tests/unit/queries/delivery/test_request_source.py",),
    BATCHES: ("tests/spark/test_source_batches.py",),
    LOST_ENTRIES: ("tests/unit/state/notes/test_lost_entries.py",),
    MEMORY: ("tests/unit/reconcile",),
}
SOURCE = (
    (
        "a broker that does not know the newest entries proves no loss",
        READ,
        "if span.ledger in ledgers or span.ledger > max(ledgers, default=-1):",
        "if False:",
    ),
    ("entries deleted after a batch was planned are reported", READ, "    lost += map(row_of_trimmed, trimmed)\n", ""),
    ("a batch reports the gap before it", READ, "[] if batch.gap is None else [row_of_gap(batch.gap)]", "[]"),
    ("a gap is excluded only by the broker's newest entry", PLANNING, "stats.last_confirmed is None or ", ""),
    ("a gap is reported once", PLANNING, "gap=None if resumed == start else resumed.gap,", "gap=resumed.gap,"),
    ("entries that were seen make a gap certain", PLANNING, "is_certain=start.seen > start.at", "is_certain=False"),
    ("only the end of a closed ledger moves on", PLANNING, "at[1] >= entries - 1", "at[1] >= entries - 2"),
    ("a partition older than its offset is refused", PLANNING, "if ledgers[-1] < start.at[0]:", "if False:"),
    (
        "messages that only a compacted ledger has are reported",
        PLANNING,
        "        if not _is_compacted_only(stats):\n            return start\n",
        "        if True:\n            return start\n",
    ),
    (
        "offsets of different batches are refused",
        STREAM,
        "if known is not None and known.at != part.after:",
        "if False:",
    ),
    (
        "a first batch is repeated wherever a query would start now",
        STREAM,
        "before = {} if start.get(_INITIAL) else from_json(start)",
        "before = from_json(start)",
    ),
    ("onDataLoss=fail fails", STREAM, "part.gap.is_certain and self._options.on_gap is OnGap.FAIL", "False"),
    (
        "a topic that was deleted unread stops the query",
        STREAM,
        "if topic in self._options.topics and part.seen > part.at:",
        "if False:",
    ),
    (
        "availableNow leaves out no partition",
        STREAM,
        "if errors and (self._target is not None or len(errors) == len(self._partitions)):",
        "if errors and len(errors) == len(self._partitions):",
    ),
    (
        "a query without a checkpoint needs all of its topics",
        STREAM,
        "        self._require_topics({})\n",
        "",
    ),
    (
        "a query with a checkpoint needs the topics that it has not read",
        STREAM,
        "if self.requires_topics and not self._has_planned:",
        "if False:",
    ),
    (
        "what a batch has processed is acknowledged",
        STREAM,
        "                self._broker.acknowledge(name, upto)\n",
        "",
    ),
    (
        "entries after an open transaction wait",
        COUNTING,
        "elif self._reads_uncommitted and not self._is_sent(scout):",
        "elif not self._is_sent(scout):",
    ),
    (
        "a partition is asked once more before its last batch is acknowledged",
        SHARING,
        "part.is_read = part.admitted is None and ",
        "part.is_read = ",
    ),
    ("a partition that can't ring is asked", STREAM, "for name in self._broker.not_listening():", "for name in ():"),
    (
        "what does not ring is found later",
        STREAM,
        "if self._quiet_until_s.get(name, 0.0) <= now_s]",
        "if name not in self._quiet_until_s]",
    ),
    (
        "no batch waits for a partition that was late",
        SHARING,
        "return self._waits or self._late_until_s.get(partition, 0.0) <= time.monotonic()",
        "return True",
    ),
    ("counting ahead is bounded", SHARING, "known.counting.fill, shares[part.name])", "known.counting.fill, limits)"),
    ("a batch has few entries that no reader gets", SHARING, "Weight(_NOT_SENT, ", "Weight(1, "),
    (
        "a batch takes entries of a few partitions at a time",
        SHARING,
        "if name is not None][:most]",
        "if name is not None]",
    ),
    ("few readers stay open", SHARING, "if readers > _MOST_READERS:", "if False:"),
    (
        "what was counted while the last batch ran is waited for",
        SHARING,
        "        self._wait_until(deadline_s)  # for what was counted while the last batch ran\n",
        "",
    ),
    (
        "a transaction that never ends stops no topic",
        REQUEST_READS,
        '"isolation": "read_uncommitted"',
        '"isolation": "read_committed"',
    ),
    (
        "a batch's end names what Pulsar deleted",
        REQUEST_READS,
        "oldest_ledger=oldest, lost=lost)",
        "oldest_ledger=oldest)",
    ),
    (
        "entries are given up only if that is allowed",
        REQUEST_READS,
        "options.controls, gives_up)",
        "options.controls, True)",
    ),
    (
        "only the batch that was withheld for long gives entries up",
        REQUEST_SOURCE,
        "self._requests.gives_up and self._first == (start, end)",
        "self._requests.gives_up",
    ),
    (
        "what Pulsar deleted is reported before the batch ends",
        BATCHES,
        "            self.report(lost)\n",
        "            pass\n",
    ),
    (
        "a read holds a slot for each of its tasks",
        BATCHES,
        "self.slots.of(query, delivered.rdd.getNumPartitions())",
        "self.slots.of(query, 0)",
    ),
    (
        "a read that others wait for ends",
        BATCHES,
        "self.slots.is_slow(query) or not others_wait()",
        "True",
    ),
    (
        "a batch whose rows changed while it was processed runs again",
        BATCHES,
        "self._ends(query, batch_id, delivered) != ends",
        "False",
    ),
    ("a row about a read is no message", BATCHES, "delivered.where(F.col(c.POSITION_BATCH).isNotNull())", "delivered"),
    ("a certain loss is noted", LOST_ENTRIES, "                if loss.is_certain:\n", "                if False:\n"),
    (
        "what the source found deleted is an alarm",
        MEMORY,
        "known = LostEntries(self._state_dir).recall()",
        "known: Unread = {}",
    ),
)
