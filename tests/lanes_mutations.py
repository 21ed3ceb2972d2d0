"""The safety lines of lanes for tests/mutation.py: each once, with the tests that must notice."""

MESSAGES, RECEIPT = "streaming/sweep/messages.py", "udfs/requests/lane_receipts.py"
FOLLOWER, TOPICS = "streaming/deletion/lane_receipts.py", "streaming/topics/receipt_topics.py"
PATTERN = "udfs/requests/topic_pattern.py"
ADMISSION, COMBINATIONS = "udfs/requests/admission.py", "streaming/config/combinations.py"
ACCOUNTS, BACKLOG = "streaming/reconcile/accounting.py", "streaming/reconcile/backlog_count.py"
# the tests that must notice, by the changed file
TESTS = {
    MESSAGES: ("tests/unit/sweep/test_messages.py",),
    RECEIPT: ("tests/unit/udfs/requests/test_lane_receipts.py",),
    FOLLOWER: ("tests/unit/deletion/test_lane_receipts.py",),
    TOPICS: ("tests/unit/topics/test_receipt_topics.py",),
    ACCOUNTS: ("tests/unit/reconcile/test_lane_accounts.py",),
    BACKLOG: ("tests/unit/reconcile/test_backlog_count.py",),
    ADMISSION: ("tests/unit/udfs/requests/test_lanes.py",),
    COMBINATIONS: ("tests/unit/config/test_load.py",),
    PATTERN: ("tests/unit/udfs/requests/test_topic_pattern.py",),
}
LANES = (
    (
        "a message in the retry topic that is no copy of ours belongs to no lane",
        MESSAGES,
        "is_ours = self._query != REQUESTS and not fault",
        "is_ours = self._query != REQUESTS",
    ),
    (
        "a tenant does not learn which ledgers others have",
        RECEIPT,
        "    if row[c.LEDGER_TYPE] == LedgerType.LEDGER and reason in _OTHERS:\n",
        "    if False:\n",
    ),
    (
        "a topic of receipts is no request topic",
        PATTERN,
        '_WRITTEN = ("-RETRY", "-DLQ", RECEIPTS_SUFFIX)',
        '_WRITTEN = ("-RETRY", "-DLQ")',
    ),
    (
        "receipts that were not published are noted",
        FOLLOWER,
        "{lane: due.chunk for lane, due in self._due.items()})",
        "{})",
    ),
    (
        "a tenant of which a topic failed takes no thread from others",
        FOLLOWER,
        "others = [lane for lane in ready if not self._is_suspect(lane)]",
        "others = ready",
    ),
    (
        "the lanes of a tenant share few threads",
        FOLLOWER,
        " and busy[tenant_of(lane)] < _LANES_OF_TENANT_AT_ONCE:",
        ":",
    ),
    (
        "the lanes of a tenant that wait are bounded",
        FOLLOWER,
        "elif waiting[tenant_of(lane)] < _LANES_OF_TENANT:",
        "else:",
    ),
    (
        "receipts that are not published to their tenant are counted",
        FOLLOWER,
        "                dropped[tenant_of(lane)] += count\n",
        "                pass\n",
    ),
    (
        "a tenant with too many waiting lanes can't fill the log",
        FOLLOWER,
        "            if tenant not in self._crowded_until_s:\n",
        "            if True:\n",
    ),
    ("receipts go to a topic without partitions only", TOPICS, "    if partitions:\n", "    if False:\n"),
    (
        "a listed topic with a lane's name keeps its rights",
        ADMISSION,
        "is_listed = topic in self.request_topics",
        "is_listed = False",
    ),
    (
        "the shared topic of lanes is no single tenant's",
        COMBINATIONS,
        "    if topics.lanes is not Lanes.ONE and tenant_of(shared) not in topics.trusted_tenants:\n",
        "    if False:\n",
    ),
    (
        "a gap of an idle lane stays an alarm",
        ACCOUNTS,
        "checked = ordered[:MOST_IDLE_LANES]",
        "checked = ordered[:0]",
    ),
    (
        "the loss of a lane that was never read is an alarm",
        ACCOUNTS,
        "        service.waiting if service is not None else {},\n",
        "        {},\n",
    ),
    (
        "the position of an idle lane is remembered",
        ACCOUNTS,
        "memory.remember(unread, check.lanes)",
        "memory.remember(unread, {})",
    ),
    (
        "a lane that is read again from an earlier position hides no gap",
        ACCOUNTS,
        "max(upto, idle.get(partition, BEFORE_ALL))",
        "upto",
    ),
    (
        "a lane that is listed now is checked as far as its query has read",
        ACCOUNTS,
        " if not self._is_listed(partition)}",
        "}",
    ),
    (
        "lanes that a check leaves to a later one are named",
        ACCOUNTS,
        "        if self._later:\n",
        "        if False:\n",
    ),
    (
        "a count of what waits asks a bounded number of lanes",
        BACKLOG,
        "fair_by_tenant(lanes)[:MOST_LANES]",
        "fair_by_tenant(lanes)",
    ),
    (
        "a tenant's many lanes keep no other tenant's from being counted",
        BACKLOG,
        "fair_by_tenant(lanes)[:MOST_LANES]",
        "sorted(lanes)[:MOST_LANES]",
    ),
    ("a lane that could not be counted is named", BACKLOG, "            not_counted += 1\n", ""),
    (
        "a count of what waits does not wait for a timeout of each lane",
        BACKLOG,
        "if failures >= _MOST_FAILURES:",
        "if False:",
    ),
)
