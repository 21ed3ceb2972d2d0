"""The safety lines of queries, accounts, ownership, clients and undo, for tests/mutation.py, with their tests."""

NAMES, SHORT_NAMES = "streaming/queries/names.py", "streaming/queries/short_names.py"
OWNED, FORMER = "streaming/deletion/lanes/owned.py", "streaming/queries/former_queries.py"
LIFE = "streaming/queries/life.py"
CHECKPOINTS, CONVERSION = "streaming/queries/checkpoints.py", "streaming/queries/conversion.py"
STORED, FIRST_BATCH = "streaming/queries/stored_checkpoint.py", "streaming/queries/first_batch.py"
CONVERTED, CONVERT = "udfs/pulsar_source/conversion.py", "streaming/cli/checkpoints.py"
LIFE_TABLE = "udfs/query_life.py"
FALLBACK = "streaming/deletion/fallback.py"
OWNERSHIP, INSTANCE = "streaming/coordination/ownership.py", "streaming/deletion/instance.py"
CLIENTS, BOOKIES, BOOKIE_RPC, UNDO = (
    "streaming/clients.py",
    "streaming/adapters/bookkeeper/bookies.py",
    "streaming/adapters/bookkeeper/bookie_rpc.py",
    "streaming/undo/bookie_answers.py",
)
ROWS = "udfs/spark.py"
# the tests that must notice, by the changed file
TESTS = {
    NAMES: ("tests/unit/queries",),
    SHORT_NAMES: ("tests/unit/queries",),
    OWNED: ("tests/unit/deletion/lanes/test_owned.py",),
    FORMER: ("tests/unit/queries/test_former_queries.py",),
    CHECKPOINTS: ("tests/unit/queries",),
    CONVERSION: ("tests/unit/queries",),
    STORED: ("tests/unit/queries",),
    FIRST_BATCH: ("tests/unit/queries/test_first_batch.py",),
    CONVERTED: ("tests/unit/udfs/pulsar_source/test_conversion.py",),
    CONVERT: ("tests/unit/cli/test_checkpoints.py",),
    LIFE: ("tests/unit/queries",),
    LIFE_TABLE: ("tests/unit/udfs/test_query_life.py", "tests/unit/queries"),
    OWNERSHIP: ("tests/contract/test_ownership.py", "-m", "not cluster"),
    INSTANCE: ("tests/unit/deletion/test_instance.py",),
    CLIENTS: ("tests/unit/test_clients.py",),
    BOOKIES: ("tests/contract/test_bookies.py", "tests/contract/test_undo_ledgers.py"),
    BOOKIE_RPC: ("tests/contract/test_bookies.py",),
    UNDO: ("tests/contract/test_undo_ledgers.py", "tests/unit/undo"),
    ROWS: ("tests/unit/udfs/test_spark.py",),
    FALLBACK: ("tests/unit/deletion/test_fallback.py",),
}
QUERIES = (
    ("queries are named by the whole digest", NAMES, ".hexdigest()\n", ".hexdigest()[:8]\n"),
    (
        "a fault of a checkpoint parks one query",
        LIFE,
        "isinstance(result, FencedError)",
        "isinstance(result, FencedError.__base__)",
    ),
    (
        "a fallback runs only after its query's thread has ended",
        LIFE,
        "                if not self._stopping.is_alive():\n",
        "                if True:\n",
    ),
    (
        "a query starts only after its fallback has ended",
        LIFE,
        "        if self._fallback.is_alive():\n            return None\n",
        "",
    ),
    (
        "a parked query proves itself before it counts as working",
        LIFE_TABLE,
        "return replace(life, phase=Phase.PROVES), Action.START",
        "return QueryLife(), Action.START",
    ),
    (
        "a short-named checkpoint moves only if it read one topic",
        SHORT_NAMES,
        " or _topics_of(old) != set(query.topics)",
        "",
    ),
    (
        "a short-named checkpoint never replaces a newer checkpoint",
        SHORT_NAMES,
        'newest <= newest_number(new.location, "offsets")',
        "newest < 0",
    ),
    (
        "a checkpoint of the other PySpark is refused",
        CHECKPOINTS,
        "if newest is None or newest.writer is installed_writer():",
        "if True:",
    ),
    (
        "no service starts while a conversion is interrupted",
        CHECKPOINTS,
        "if folder_of(root_of(settings)).read(CONVERTING) is not None:",
        "if False:",
    ),
    (
        "one checkpoint that can't be converted stops the conversion",
        CONVERSION,
        "    if faults:\n        raise SafetyError",
        "    if False:\n        raise SafetyError",
    ),
    (
        "a conversion is planned on the disk before it starts",
        CONVERSION,
        "    root.write(CONVERTING, json.dumps(asdict(plan)).encode())\n    folders",
        "    folders",
    ),
    (
        "what a checkpoint was is not copied again after it was changed",
        CONVERSION,
        "        root.write(CONVERTING, json.dumps(asdict(replace(plan, is_aside=True))).encode())\n",
        "",
    ),
    (
        "entries with a receipt are in the first batch",
        STORED,
        "for table in (receipts.TABLE, waiting.TABLE):",
        "for table in (waiting.TABLE,):",
    ),
    (
        "retries that wait are in the first batch",
        STORED,
        "for table in (receipts.TABLE, waiting.TABLE):",
        "for table in (receipts.TABLE,):",
    ),
    (
        "a batch that was started is the first batch",
        CONVERSION,
        "max(started.get(name, BEFORE_ALL), done.get(name, BEFORE_ALL))",
        "done.get(name, BEFORE_ALL)",
    ),
    (
        "a damaged checkpoint is not converted",
        STORED,
        "metadata is None or committed not in (started, started - 1)",
        "metadata is None",
    ),
    (
        "a checkpoint of two writers is not converted",
        STORED,
        "before is not None and before.writer is not newest.writer",
        "False",
    ),
    (
        "an answer without entries that were read is not believed",
        CONVERTED,
        "    if upto[1] >= 0 and upto > stats.last:\n",
        "    if False:\n",
    ),
    (
        "a query's first batch has all messages with receipts",
        FIRST_BATCH,
        "max(resumed.at, min(upto, stats.last))",
        "resumed.at",
    ),
    (
        "a first batch that is fixed starts where the query was",
        FIRST_BATCH,
        "start = committed.get(name) or first_offset(stats)",
        "start = first_offset(stats)",
    ),
    ("a converted position keeps what was stored", CONVERTED, "seen=max(start.at, stats.last)", "seen=start.at"),
    ("a loss before the conversion is not certain", CONVERTED, " if is_stored else start\n", "\n"),
    (
        "a topic that was deleted unread is not converted to the connector",
        CONVERTED,
        "        if newest.seen > part.at:\n",
        "        if False:\n",
    ),
    (
        "a started batch that reports a loss is not converted to the connector",
        CONVERTED,
        "if batch is not None and batch.gap is not None:",
        "if False:",
    ),
    ("a loss is not converted to the connector", CONVERTED, "if resumed.gap is not None:", "if False:"),
    (
        "deleted entries of a started batch are not converted to the connector",
        CONVERTED,
        "if batch is not None and any(without(batch.spans, stored)):",
        "if False:",
    ),
    ("a running service's checkpoints are not converted", CONVERT, ", control.stopped(settings, clients.store):", ":"),
    ("only a service's own directories are converted", CONVERT, "        _require_own(settings, clients)\n", ""),
    ("receipts of another service prove nothing", CONVERT, "    own_state(clients.store, settings)\n", ""),
    (
        "another service's matching topic is not read",
        OWNED,
        "for topic, count in lanes.items() if topic not in foreign}",
        "for topic, count in lanes.items()}",
    ),
    (
        "a matching topic that is gone leaves no claim",
        OWNED,
        "        self.ownership.release(gone)\n",
        "",
    ),
    (
        "lanes that another service reads are left out",
        OWNED,
        "self.ownership.foreign(lanes.keys() - (self._owned or set()))",
        "{}",
    ),
    (
        "a checkpoint whose store is away is read again before its topic is",
        FORMER,
        "except DamagedCheckpointError as error",
        "except Exception as error",
    ),
    (
        "a later query compares all that passes have read with the receipts",
        FORMER,
        "            _forget_unfinished(checkpoint)\n",
        "",
    ),
    (
        "a topic of which another service has just become the owner is not read",
        OWNERSHIP,
        '                foreign[topic] = "it is read by another service"\n',
        "                pass\n",
    ),
    (
        "a topic belongs to one service",
        OWNERSHIP,
        "            if owner.service != self._service:\n",
        "            if not owner.service:\n",
    ),
    (
        "one of two services that start at once is refused",
        OWNERSHIP,
        "                    self.refuse_foreign([topic])\n",
        "                    pass\n",
    ),
    (
        "a refused service owns nothing",
        OWNERSHIP,
        "            self._delete(created)\n            raise\n",
        "            raise\n",
    ),
    (
        "no service releases another service's topic",
        OWNERSHIP,
        "        owned = [topic for topic, owner in self._owners([*topics]) if owner.service == self._service]\n",
        "        owned = [topic for topic, _ in self._owners([*topics])]\n",
    ),
    (
        "a service keeps its state directory",
        OWNERSHIP,
        'recorded.get("receipts") == receipts_id',
        '"receipts" in known',
    ),
    ("a start claims its topics", INSTANCE, "        ownership.claim(settings.topics.claims)\n", ""),
    (
        "a start refuses lost znodes of its own",
        INSTANCE,
        "    _require_own_root(store, root, settings.state_dir)\n",
        "",
    ),
    (
        "a message that is delivered again has one row",
        ROWS,
        "            if newest is not None and position <= newest:\n",
        "            if newest is not None and position < (-1,):\n",
    ),
    (
        "a directory that can't be written is refused at the start",
        INSTANCE,
        "        require_writable(directory)\n",
        "        pass\n",
    ),
    (
        "a bucket that is not allowed has no client",
        CLIENTS,
        "    if bucket not in allowed_buckets(settings):\n",
        "    if False:\n",
    ),
    (
        "a bookie that reads no control entry proves nothing",
        BOOKIES,
        "False if answer & trusted else None",
        "False if answer else None",
    ),
    (
        "a bookie must read control entries before and after",
        BOOKIES,
        "                trusted = set(able(able_before, controls))\n",
        "                trusted = set(able_before)\n",
    ),
    (
        "entries that could not be read are tried again",
        UNDO,
        "    readable |= are_readable(gone)\n",
        "",
    ),
    (
        "an undo is too late only if neither entry is stored",
        UNDO,
        "    return False, HALF_STORED if first or last else GONE\n",
        "    return False, GONE\n",
    ),
    (
        "an undo is too late only if it is known of both entries",
        UNDO,
        "    if first is None or last is None:\n",
        "    if first is None and last is None:\n",
    ),
    (
        "an entry is gone only if all of its bookies answered so",
        BOOKIES,
        "        return False if answers == {False} else None\n",
        "        return False if False in answers else None\n",
    ),
    (
        "a bookie that answers with another error may store the entry",
        BOOKIE_RPC,
        "        if code in (_NO_LEDGER, _NO_ENTRY):\n",
        "        if code:\n",
    ),
    (
        "a bookie that stores no entry of this cluster is not believed",
        BOOKIES,
        "[None if bookies - reads.proven else answer for",
        "[answer for",
    ),
    (
        "an undo is too late only if no bookie has any entry of a striped ledger",
        UNDO,
        "    if len(placement.segments) == 1 and placement.write_quorum == size:\n",
        "    if True:\n",
    ),
    (
        "an undo is not too late if a bookie does not answer for its own entries",
        UNDO,
        "        elif None in of_others.answers:\n",
        "        elif False:\n",
    ),
    ("another query's batch is not read by the fallback", FALLBACK, "        _require_own(query, checkpoint)\n", ""),
)
