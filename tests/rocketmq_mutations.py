"""The safety lines of `ledger-reaper rocketmq` for tests/mutation.py: line, file, what stands there, what then does."""

MOVE, LOCKS, BACKFILL, JOB, JOIN, SURVEY, FORGET, ROLLBACK, FILE_QUEUES, EXPORT, CHECK, OWNER, DISK = (
    f"streaming/rocketmq/{name}.py"
    for name in (
        "move", "locks", "backfill", "job", "join", "survey", "forget", "rollback", "file_queues", "export",
        "check", "owner", "disk",
    )
)  # fmt: skip
FOLLOWED, TAIL, HANDOVER, BASE, RUN = (
    f"streaming/rocketmq/follow/{name}.py" for name in ("followed", "tail", "handover", "base", "run")
)
REFUSALS, GROWTH, LOG, COMPARE = (f"udfs/rocketmq/{name}.py" for name in ("refusals", "growth", "commitlog", "compare"))
CLI = "streaming/cli/rocketmq.py"
_UNIT = "tests/unit/rocketmq"
_FORMATS = "tests/unit/udfs/rocketmq"
# which tests have to notice, by the file that is changed
TESTS = {
    MOVE: (f"{_UNIT}/test_backfill.py", f"{_UNIT}/test_rollback.py", f"{_UNIT}/test_forget.py"),
    LOCKS: (f"{_UNIT}/test_locks.py",),
    BACKFILL: (f"{_UNIT}/test_backfill.py",),
    JOB: (f"{_UNIT}/test_backfill.py",),
    JOIN: (f"{_UNIT}/test_backfill.py",),
    SURVEY: (f"{_UNIT}/test_survey.py",),
    FORGET: (f"{_UNIT}/test_forget.py",),
    ROLLBACK: (f"{_UNIT}/test_rollback.py", f"{_UNIT}/test_file_queues.py"),
    FILE_QUEUES: (f"{_UNIT}/test_file_queues.py",),
    EXPORT: (f"{_UNIT}/test_export.py",),
    CHECK: (f"{_UNIT}/test_check.py",),
    OWNER: (f"{_UNIT}/test_owner.py",),
    DISK: (f"{_UNIT}/test_disk.py",),
    FOLLOWED: (f"{_UNIT}/follow/test_followed.py",),
    TAIL: (f"{_UNIT}/follow/test_tail.py",),
    HANDOVER: (f"{_UNIT}/follow/test_handover.py",),
    RUN: (f"{_UNIT}/follow/test_acceptance.py",),
    BASE: (f"{_UNIT}/follow/test_followed.py",),
    REFUSALS: (f"{_FORMATS}/test_refusals.py",),
    GROWTH: (f"{_FORMATS}/test_growth.py", f"{_UNIT}/follow/test_followed.py"),
    LOG: (f"{_FORMATS}/test_commitlog.py", f"{_UNIT}/follow/test_tail.py"),
    COMPARE: (f"{_FORMATS}/test_compare.py",),
    CLI: ("tests/unit/cli/test_rocketmq.py",),
}
_LOCK = "fcntl.LOCK_EX | fcntl.LOCK_NB"

ROCKETMQ = (
    ("RocketMQ: no broker beside us", LOCKS, f"fcntl.lockf(handle, {_LOCK}, 1, 0)", "pass"),
    ("RocketMQ: one writer", LOCKS, f"fcntl.flock(handle, {_LOCK})", "pass"),
    ("RocketMQ: CURRENT goes in last", MOVE, "in sorted(sealed.files.keys() - {CURRENT}):", "in sorted(sealed.files):"),
    ("RocketMQ: CURRENT comes out first", MOVE, "key=lambda each: each.name != CURRENT", "reverse=True"),
    ("RocketMQ: all is in before CURRENT", MOVE, "    _require_all_in(place, sealed)\n", ""),
    ("RocketMQ: nothing is taken back behind CURRENT", MOVE, "if not (place.rocksdb / CURRENT).exists() and", "if"),
    (
        "RocketMQ: no opened database is taken back",
        MOVE,
        " and _says(place.config / name / CURRENT, sealed.currents[name])",
        "",
    ),
    ("RocketMQ: what makes room is kept", MOVE, "    set_aside_queues(place, kept, rename, ours=sealed)\n", ""),
    ("RocketMQ: an unclean stop is refused", REFUSALS, "    elif facts.has_abort:", "    elif False:"),
    ("RocketMQ: bad bytes are refused", REFUSALS, "for text in facts.bad_bytes", "for text in ()"),
    ("RocketMQ: batch queues are refused", REFUSALS, "    if facts.batch_queues:", "    if False:"),
    ("RocketMQ: extensions are refused", REFUSALS, "    if facts.ext_queues:", "    if False:"),
    ("RocketMQ: compacted topics are refused", REFUSALS, "    if facts.compaction:", "    if False:"),
    ("RocketMQ: config manager V2 is refused", REFUSALS, 'if facts.config_manager.lower() == "v2":', "if False:"),
    ("RocketMQ: a RocksDB is not replaced unasked", REFUSALS, "if facts.has_rocksdb and not replace:", "if False:"),
    ("RocketMQ: newer offsets are not replaced", REFUSALS, "    if facts.databases_with_rows:", "    if False:"),
    ("RocketMQ: newer offsets are seen", SURVEY, "if rows[name].default and not is_unopened(place, name)", "if False"),
    ("RocketMQ: too long topics are refused", REFUSALS, "if len(each) > TOPIC_BYTES_MAX", "if False"),
    ("RocketMQ: two files of offsets are refused", REFUSALS, "    if facts.two_offset_files:", "    if False:"),
    (
        "RocketMQ: a store without topics is refused",
        REFUSALS,
        "    if not facts.has_topics and facts.has_messages:",
        "    if False:",
    ),
    ("RocketMQ: another disk is refused", REFUSALS, "    if not facts.is_one_disk:", "    if False:"),
    ("RocketMQ: another user is refused", OWNER, "    if owner == own:", "    if True:"),
    ("RocketMQ: a small disk is refused", REFUSALS, "if facts.bytes_needed > facts.bytes_free:", "if False:"),
    ("RocketMQ: a crowded disk is refused", REFUSALS, "if percent > facts.clean_forcibly_percent:", "if False:"),
    ("RocketMQ: a crowded disk ends follow", DISK, "    if percent > limit:", "    if False:"),
    ("RocketMQ: parts of another store are thrown away", BACKFILL, " or sealed.fingerprint != fingerprint", ""),
    (
        "RocketMQ: a store that changes is refused",
        BACKFILL,
        "if inventory.fingerprint() != started.fingerprint:",
        "if False:",
    ),
    (
        "RocketMQ: no unit behind a hole",
        JOB,
        "                    require_end(piece.files, piece.end)",
        "                    pass",
    ),
    ("RocketMQ: a unit is that of its message", JOB, "        self._compare(piece, found, of_piece)", "        pass"),
    ("RocketMQ: bad units are refused", JOB, "        if bad is not None:", "        if False:"),
    ("RocketMQ: a part is whole", JOB, "    if found != count:", "    if False:"),
    (
        "RocketMQ: every queue keeps its next offset",
        JOIN,
        "        if each.end > 0:",
        "        if each.first < each.end:",
    ),
    (
        "RocketMQ: no hole in what is followed",
        GROWTH,
        "if known is not None and first > known.offset + 1:",
        "if False:",
    ),
    ("RocketMQ: a queue made anew loses its old rows", GROWTH, "clears = known is not None and", "clears = False and"),
    (
        "RocketMQ: CHECKPOINT never goes ahead",
        FOLLOWED,
        "rows.checkpoint_value(newest)))\n        gone",
        "rows.checkpoint_value(newest + 1)))\n        gone",
    ),
    (
        "RocketMQ: follow believes the log, not itself",
        FOLLOWED,
        "if 0 <= indexed <= checkpoint and self._agrees(log, indexed):",
        "if indexed >= 0:",
    ),
    (
        "RocketMQ: what is followed ends as the file queue does",
        FOLLOWED,
        "            self._require_alike(",
        "            (lambda *_: None)(",
    ),
    ("RocketMQ: a log that was cut off is noticed", TAIL, "        self._require_last(log)\n", ""),
    (
        "RocketMQ: a log that has moved on is noticed",
        TAIL,
        "        if self.position < log.start:",
        "        if False:",
    ),
    (
        "RocketMQ: the last record waits for the next",
        LOG,
        "        if not _has_begun(log, position + size):",
        "        if False:",
    ),
    ("RocketMQ: a record says where it begins", LOG, "    if phy != start + position:", "    if False:"),
    (
        "RocketMQ: what is followed is cut off at one message",
        BASE,
        "bisect.bisect_left(range(begin, queue.range.end), True, key=is_behind)",
        "queue.range.end",
    ),
    ("RocketMQ: no rollback behind a crash", ROLLBACK, 'if (place.store / "abort").exists():', "if False:"),
    ("RocketMQ: no rollback within a backfill", ROLLBACK, "        elif sealed is not None:", "        elif False:"),
    ("RocketMQ: no rollback over a gap", ROLLBACK, "    if record is not None and record.is_indexed:", "    if False:"),
    ("RocketMQ: only newer offsets go back", ROLLBACK, "if not is_unopened(place, name)]", "if True]"),
    (
        "RocketMQ: what a rollback replaces is kept",
        ROLLBACK,
        "        rename(copy, kept / CONFIG / old.name)",
        "        copy.unlink()",
    ),
    ("RocketMQ: a rollback completes the file queues", ROLLBACK, "            complete(place, kept, rename)\n", ""),
    (
        "RocketMQ: no hole goes back into a file queue",
        FILE_QUEUES,
        "if not np.array_equal(offsets, np.arange(first, first + len(some))):",
        "if False:",
    ),
    (
        "RocketMQ: a file queue of an earlier life is set aside",
        FILE_QUEUES,
        "    if row is None or row == unit or unit.size == u.BLANK_SIZE:",
        "    if True:",
    ),
    (
        "RocketMQ: a contradicted file queue is no rollback",
        FILE_QUEUES,
        "    if is_later:\n        return False",
        "    return False",
    ),
    (
        "RocketMQ: newer JSON files are not replaced unasked",
        ROLLBACK,
        "    if newest and not offsets_of:",
        "    if False:",
    ),
    ("RocketMQ: follow refuses what backfill would", RUN, "        require_accepted(self.place)\n", ""),
    ("RocketMQ: no export beside a broker", EXPORT, "    if is_broker_running(place):", "    if False:"),
    (
        "RocketMQ: no guess which offsets a broker reads",
        EXPORT,
        "place.conf.is_lmq is None and not is_name_told(place)",
        "False",
    ),
    (
        "RocketMQ: only what is ours is forgotten",
        FORGET,
        "            if folder not in known or folder.parent.name != OWN or folder.is_symlink():",
        "            if False:",
    ),
    ("RocketMQ: nothing is forgotten beside a broker", FORGET, "with broker_kept_out(place):", "if True:"),
    (
        "RocketMQ: a sealed database does not go back",
        HANDOVER,
        "if is_followed and sealed_of(place) is None:",
        "if is_followed:",
    ),
    ("RocketMQ: nothing without a word", CLI, "    if not yes and not sys.stdin.isatty():", "    if False:"),
    ("RocketMQ: check misses nothing", COMPARE, "in_log.there & ~in_database.there,", "in_log.there & ~in_log.there,"),
    (
        "RocketMQ: check looks at max rows",
        CHECK,
        "if said < wanted or (bound.last >= 0 and said != wanted):",
        "if False:",
    ),
    ("RocketMQ: check looks at CHECKPOINT", CHECK, "    elif checkpoint > log_end:", "    elif False:"),
    ("RocketMQ: check looks at versions", CHECK, "if counter is None or counter < wanted_counter - 1:", "if False:"),
)
