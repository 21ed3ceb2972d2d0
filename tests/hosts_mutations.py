"""The safety lines of state shared by many hosts for tests/mutation.py: each once, with the tests that must notice."""

COMMITS, STORES = "streaming/state/delta/commits.py", "streaming/state/delta/object_store_options.py"
LEFTOVERS = "streaming/state/delta/leftovers.py"
OVERWRITING, SUBMISSION = "streaming/coordination/overwriting.py", "streaming/spark/submission.py"
TASK, PACE = "streaming/sweep/task.py", "streaming/sweep/pace.py"
# the tests that must notice, by the changed file
TESTS = {
    COMMITS: ("tests/unit/state/delta/test_commits.py",),
    LEFTOVERS: ("tests/unit/state/delta/test_leftovers.py",),
    STORES: ("tests/contract/test_state_stores.py",),
    OVERWRITING: ("tests/contract/test_overwriting.py",),
    SUBMISSION: ("tests/unit/spark/test_submission.py",),
    TASK: ("tests/unit/sweep/test_task.py",),
    PACE: ("tests/unit/sweep/test_pace.py",),
}
HOSTS = (
    (
        "a run that was overtaken commits nothing",
        COMMITS,
        "if (current := table.transaction_version(app)) != transaction_before:",
        "if (current := transaction_before) != transaction_before:",
    ),
    (
        "a commit carries its transaction",
        COMMITS,
        "CommitProperties(app_transactions=[Transaction(app, version)], ",
        "CommitProperties(",
    ),
    (
        "a commit whose answer was lost is recognised",
        COMMITS,
        "if _has_commit(table, commit_id, version_before):",
        "if files and has(table, files):",
    ),
    (
        "another run's commit is not taken for ours",
        COMMITS,
        "any(_commit_id(line) == commit_id for",
        "any(_commit_id(line) for",
    ),
    ("a task's file is on the disk", COMMITS, "                flush(self._path)\n", "                pass\n"),
    ("a file of work that failed is not there", COMMITS, "                file.discard()\n", "                pass\n"),
    (
        "a file that may yet be committed stays",
        LEFTOVERS,
        "(transaction is None or int(transaction[1]) > settled)",
        "transaction is None",
    ),
    (
        "a file without a transaction in its name stays",
        LEFTOVERS,
        "(transaction is None or int(transaction[1]) > settled)",
        "(transaction is not None and int(transaction[1]) > settled)",
    ),
    (
        "a merged file stays for readers of earlier versions",
        LEFTOVERS,
        "needed = kept_for_readers.union(",
        "needed = set[str]().union(",
    ),
    (
        "a commit on S3 is put on condition",
        STORES,
        '{"conditional_put": "etag"}',
        '{"conditional_put": "disabled"}',
    ),
    ("a store that overwrites is refused", OVERWRITING, "    if not refuses:\n", "    if False:\n"),
    (
        "a property that shows a secret is refused",
        SUBMISSION,
        "    elif _LOOKS_SECRET.search(key):\n",
        "    elif False:\n",
    ),
    (
        "an option of Java that shows a secret is refused",
        SUBMISSION,
        "    if any(not _NAMES_A_FILE.fullmatch(match",
        "    if any(False and not _NAMES_A_FILE.fullmatch(match",
    ),
    (
        "a task that runs again has no plan",
        TASK,
        "task.most_deletes[number] if is_first else 0",
        "task.most_deletes[number]",
    ),
    (
        "a batch is paid for before it is sent",
        PACE,
        "self._paid_s = max(self._paid_s + deletes / (self._rate * self._share), now_s)",
        "self._paid_s = max(self._paid_s, now_s - deletes / (self._rate * self._share))",
    ),
    (
        "no more ledgers are deleted than were planned",
        PACE,
        "        if deletes > self._left:\n",
        "        if False:\n",
    ),
)
