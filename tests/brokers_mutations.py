"""The safety lines of requests to brokers for tests/mutation.py: each once, with the tests that must notice."""

BROKER, LOADED = "streaming/adapters/pulsar/admin_api/broker.py", "streaming/adapters/pulsar/admin_api/loaded.py"
HTTP, SILENCE = "streaming/adapters/pulsar/http.py", "streaming/adapters/pulsar/silence.py"
THREADS = "streaming/adapters/pulsar/admin_api/threads.py"
ENTRIES, ADMIN_ENTRIES = (
    "streaming/adapters/pulsar/readers/entries.py",
    "streaming/adapters/pulsar/readers/admin_entries.py",
)
ENTRIES_TESTS = ("tests/unit/adapters/pulsar/readers/test_admin_entries.py",)
CONTROL_ENTRIES = "streaming/adapters/pulsar/readers/control_entries.py"
SPAN_READER = "streaming/adapters/pulsar/readers/span_reader.py"
INTERNAL_STATS = "udfs/formats/internal_stats.py"
REFERENCES = "udfs/owners/references.py"
ADMIN_TESTS, HOSTILE_TESTS = "tests/contract/test_pulsar_http.py", "tests/contract/test_hostile_broker.py"
LOADED_TESTS = "tests/unit/adapters/pulsar/admin_api/test_loaded.py"
# the tests that must notice, by the changed file
TESTS = {
    BROKER: (ADMIN_TESTS, HOSTILE_TESTS),
    LOADED: (LOADED_TESTS, ADMIN_TESTS, HOSTILE_TESTS),
    HTTP: (ADMIN_TESTS, HOSTILE_TESTS),
    THREADS: ("tests/unit/adapters/pulsar/admin_api/test_threads.py", HOSTILE_TESTS),
    ENTRIES: ENTRIES_TESTS,
    ADMIN_ENTRIES: ENTRIES_TESTS,
    CONTROL_ENTRIES: ENTRIES_TESTS,
    SPAN_READER: ("tests/unit/adapters/pulsar/readers/test_span_reader.py",),
    INTERNAL_STATS: (*ENTRIES_TESTS, "tests/unit/udfs/formats/test_internal_stats.py"),
    SILENCE: ("tests/unit/adapters/pulsar/test_silence.py",),
    REFERENCES: ("tests/unit/udfs/owners/test_references.py",),
}
BROKERS = (
    (
        "an entry that its bookies do not return is not given up, whatever else the broker returns",
        ADMIN_ENTRIES,
        "        if not _LOSS.search(answer.data):\n",
        "        if False:\n",
    ),
    (
        "the caller decides when a lost entry is given up",
        ADMIN_ENTRIES,
        '        if not self.controls.gives_up:\n            raise UnavailableError(f"',
        '        if False:\n            raise UnavailableError(f"',
    ),
    (
        "entries without an answer are compared with their bookies at the end of a read",
        ENTRIES,
        "        from_admin.confirm()\n",
        "",
    ),
    (
        "a control entry at the end may not come from a cache",
        ADMIN_ENTRIES,
        "self._silent[silent[-1]] + _CACHE_SECONDS - time",
        "self._silent[silent[-1]] - time",
    ),
    (
        "a ledger without a control entry gets more time than a broker waits for its bookies",
        ADMIN_ENTRIES,
        "        patience_s = _BOOKIES_SECONDS\n",
        "        patience_s = FULL_TIMEOUT_SECONDS\n",
    ),
    (
        "an entry of bookies that answer gets more time than a broker waits for the bookie that hung before",
        ADMIN_ENTRIES,
        "            patience_s = _BOOKIE_SECONDS\n",
        "            patience_s = FULL_TIMEOUT_SECONDS\n",
    ),
    (
        "an entry that the broker has not passed over may be waiting for a bookie",
        ADMIN_ENTRIES,
        "[position for position in silent if position not in self._passed_over]",
        "[]",
    ),
    (
        "an entry that the broker acknowledged only for another reader is not passed over",
        SPAN_READER,
        "any(lower < remaining.next <= to for lower, to in acknowledged)",
        "True",
    ),
    (
        "an entry of other bookies is no control entry at the end",
        CONTROL_ENTRIES,
        "if at is not None and at[1] in siblings]",
        "if at is not None]",
    ),
    (
        "bookies take turns",
        INTERNAL_STATS,
        "first + (entry - first) % self.size, end, self.size)",
        "first, end)",
    ),
    (
        "each ensemble of a ledger has its own control entry at the end",
        INTERNAL_STATS,
        "        first = max(first for first in self.firsts if first <= entry)\n",
        "        first = 0\n",
    ),
    (
        "entries are requested again after the control entries at the end, when a broker has turned to other bookies",
        ADMIN_ENTRIES,
        "        self._retries_left_s = _RETRIES_SECONDS\n",
        "        return\n",
    ),
    (
        "an entry that is returned late is not given up",
        ADMIN_ENTRIES,
        "        if any(_is_shown(self._retry(position, timeout_s)) for position in list(self._silent)):\n",
        "        if False:\n",
    ),
    (
        "the last requests reach every entry without an answer, though there are many",
        ADMIN_ENTRIES,
        "self._retry(position, timeout_s)",
        "self._retry(position)",
    ),
    (
        "no entry is given up while no broker serves its topic",
        ADMIN_ENTRIES,
        "        self.admin.internal_stats(self.partition)  # while no",
        "        # while no",
    ),
    (
        "a proxy that ends a request sooner does not shorten the time that a broker has for its bookies",
        ADMIN_ENTRIES,
        "            if took_s < FULL_TIMEOUT_SECONDS:",
        "            if True:",
    ),
    (
        "retries at a broker that fails repeatedly delay no chunk",
        BROKER,
        "                if not answer.may_pass or not silence.is_due(_retries(asks[name][0]))\n",
        "                if not answer.may_pass\n",
    ),
    (
        "only the state of a loaded topic is requested",
        BROKER,
        "[name for name in topics if topics[name] not in loaded.hosts]",
        "[]",
    ),
    (
        "while a broker does not list its topics, a topic that no other has loaded is unreadable",
        BROKER,
        "        if loaded.error:\n            return dict.fromkeys(names, _unavailable",
        "        if False:\n            return dict.fromkeys(names, _unavailable",
    ),
    (
        "a topic that two brokers have loaded is unreadable",
        BROKER,
        "owners[0] if len(owners) == 1 else _SEVERAL",
        "owners[0]",
    ),
    (
        "a schema is requested only if its topic is loaded",
        BROKER,
        "            if schema_id in topics:\n",
        "            if schema_id in topics or topics.setdefault(schema_id, next(iter(loaded.hosts), '')):\n",
    ),
    (
        "a namespace is gone only with the known reason",
        BROKER,
        "answer.status == HTTPStatus.NOT_FOUND and answer.reason == _NO_NAMESPACE",
        "answer.status == HTTPStatus.NOT_FOUND",
    ),
    (
        "a hanging broker is not waited for",
        LOADED,
        '        if not silence.is_due(f"{host}{KIND}"):  # the thread',
        "        if False:  # the thread",
    ),
    (
        "tenants share the threads for a broker fairly",
        THREADS,
        "min(self._left, key=self._in_flight.__getitem__)",
        "next(iter(self._left))",
    ),
    (
        "topics of one tenant that hang silence no broker",
        HTTP,
        '        tenant = "" if what else _tenant(url)\n',
        '        tenant = ""\n',
    ),
    (
        "a broker counts as hanging only after timeouts of two tenants",
        SILENCE,
        "_TENANTS = 2 ",
        "_TENANTS = 1 ",
    ),
    (
        "a broker that hangs for all tenants does not get a request for each",
        SILENCE,
        "_TENANTS = 2 ",
        "_TENANTS = 1_000_000 ",
    ),
    (
        "a tenant that silenced a broker does not use up the other tenants' try",
        SILENCE,
        "        return has_silenced_it or self._hanging(",
        "        return self._hanging(",
    ),
    (
        "all slow tenants of a broker share one try",
        SILENCE,
        "        return _slow(what) if",
        "        return _of(what, tenant) if",
    ),
    (
        "once a broker answers, all waiting requests are sent",
        BROKER,
        "            if not sent or time.monotonic() > deadline:\n",
        "            if True:\n",
    ),
    (
        "an answer without a list of topics is not an empty list",
        LOADED,
        "            return LoadedAt(error=why), True\n",
        "            return LoadedAt(), True\n",
    ),
    (
        "the topics of a broker that is not waited for are unknown",
        BROKER,
        'LoadedAt(error=f"{host} did not answer the last request in time")',
        "LoadedAt()",
    ),
    (
        "a caller does not wait for a broker that was late",
        LOADED,
        "        if last.is_late:\n            return 0.0\n",
        "",
    ),
    (
        "the topics of two brokers at one address are unknown",
        LOADED,
        "        if host in self._shared:\n",
        "        if False:\n",
    ),
    (
        "topic lists that hang silence no broker",
        BROKER,
        ', deadline=deadline, kind=f"/{what}"))',
        ", deadline=deadline))",
    ),
    (
        "a thread that hangs for a topic list silences no other list",
        THREADS,
        "            if is_running and not self.hides:",
        "            if is_running:",
    ),
    ("without a running broker nothing is known", LOADED, "        if not advertised:\n", "        if False:\n"),
    (
        "a timeout is the fault of the host that hung",
        HTTP,
        "            if error.host == _host(host):\n",
        "            if True:\n",
    ),
    (
        "a timeout is remembered",
        HTTP,
        '                self._silence.timed_out(what, "" if isinstance(error, httpx.ConnectTimeout) else tenant)\n',
        "                pass\n",
    ),
    ("an answer that comes too slowly ends", HTTP, "        if time.monotonic() > until:\n", "        if False:\n"),
    (
        "the memory of changing tenants and namespaces is bounded",
        SILENCE,
        "            del self._known[next(iter(self._known))]\n",
        "            pass\n",
    ),
    (
        "a hanging host is tried seldom",
        SILENCE,
        "            hanging.next_try_s = self._now_s() + _REST * patience_s\n",
        "",
    ),
    (
        "the compacted ledger of an unloaded topic is known only if its cursor was closed",
        REFERENCES,
        "    if any(cursor.cursors_ledger_id != -1 for cursor in cursors):\n",
        "    if False:\n",
    ),
    (
        "unreachable brokers are no fault of the owner",
        REFERENCES,
        "is_unavailable=broker.is_unavailable",
        "is_unavailable=False",
    ),
    (
        "a topic that brokers list without a znode is unreadable",
        REFERENCES,
        "    if broker.presence is Presence.PRESENT and not is_deleted:",
        "    if broker.is_loaded and broker.presence is Presence.PRESENT and not is_deleted:",
    ),
)
