"""Lines that keep a broker from sealing ids twice after a repair, for tests/mutation.py, with the tests that notice."""

REPAIR, FIRST = "streaming/snapshots/repair.py", "streaming/snapshots/first_index.py"
JOURNAL, REPAIRED = "streaming/snapshots/repair_journal.py", "streaming/snapshots/repaired.py"
RULES = "udfs/snapshots/repairing.py"
LOADER = "streaming/snapshots/repairs.py"
SNAPSHOTS_TESTS = {
    LOADER: ("tests/unit/snapshots/test_repairs.py",),
    REPAIR: ("tests/unit/snapshots/test_repair.py",),
    JOURNAL: ("tests/unit/snapshots/test_repair_journal.py",),
    REPAIRED: ("tests/unit/snapshots/test_repair.py",),
    FIRST: ("tests/unit/snapshots/test_repair.py",),
    RULES: ("tests/unit/snapshots/test_repair.py", "tests/unit/udfs/snapshots/test_repairing.py"),
}
SNAPSHOTS_LINES = (
    (
        "a topic is looked at once more before it is repaired",
        REPAIR,
        "        self._refuse(again, remedy)\n",
        "",
    ),
    (
        "an undo makes no topic unloadable",
        REPAIR,
        "        if now > lost:\n",
        "        if False:\n",
    ),
    (
        "a repair waits for its broker's index",
        FIRST,
        "            if not lacks or segments > FEW_SEGMENTS:\n",
        "            if True:\n",
    ),
    (
        "an index without a maxReadPosition is none to go on from",
        RULES,
        "    if rows and index is not None and index.max_read == BEFORE_ALL:\n",
        "    if False:\n",
    ),
    (
        "a sealed segment that the index lacks is waited for",
        RULES,
        "    if lacks:\n",
        "    if False:\n",
    ),
    (
        "what a broker wrote in the midst of a replay is replaced before the next load",
        REPAIR,
        "        self._once_more(topic, new)\n        with suppress",
        "        with suppress",
    ),
    (
        "a topic that a client had loaded from what was replaced is unloaded",
        REPAIR,
        "        with suppress(RefusedError):  # a client may have had it loaded from what its broker wrote\n"
        "            self.loader.unload(topic)\n",
        "",
    ),
    (
        "a repair whose broker writes nothing leaves its own index",
        REPAIR,
        "        if lacks:\n            self._once_more(topic, new)\n",
        "",
    ),
    (
        "what was replaced in the midst of a repair is in the journal",
        REPAIR,
        "            name = self._write_down(topic, index, new, Act.AGAIN)\n",
        '            name = ""\n',
    ),
    (
        "an undo puts back what the repair found",
        REPAIR,
        "            if entry.is_again and not entry.begins:\n",
        "            if False:\n",
    ),
    (
        "an undo goes back over no repair of half a replay",
        REPAIR,
        "            if entry.is_again:  # and",
        "            if False:  # and",
    ),
    (
        "an undo puts back no index of half a replay",
        REPAIR,
        "if index.entries.rows and index.max_read == BEFORE_ALL:",
        "if False:",
    ),
    ("an undo puts back no index of another topic", REPAIR, "if index.topic != topic:", "if False:"),
    (
        "an undo does not count what was never sent",
        REPAIR,
        "            if not self._was_sent(entry, now):\n",
        "            if False:\n",
    ),
    (
        "what was sent counts though it was not marked",
        REPAIR,
        "        if entry.was_sent or entry.by == now:\n",
        "        if True:\n            return entry.was_sent\n        if True:\n",
    ),
    (
        "what a broker wrote in the midst of a replay is not put back",
        REPAIR,
        "Act.REPAIR_OF_HALF if is_half else Act.REPAIR",
        "Act.REPAIR",
    ),
    (
        "a repair of which only a half replay's ids are known is not verified",
        REPAIRED,
        "    if not is_whole:\n",
        "    if False:\n",
    ),
    (
        "a repair that goes on looks for what the first one knew",
        REPAIR,
        "looks = [look, self.looks.look_from(topic, replaced)]",
        "looks = [look]",
    ),
    (
        "a repair of half a replay that goes on is not verified either",
        REPAIR,
        "is_whole=not begun.is_again",
        "is_whole=True",
    ),
    (
        "a repair whose segments are lost is not gone on with",
        REPAIR,
        "        return None if self.looks.lost_in(topic, _index_of(last.name, last.by)) else last\n",
        "        return last\n",
    ),
    (
        "a repair that was verified is not gone on with",
        REPAIR,
        " or last.is_done or",
        " or",
    ),
    (
        "the journal's order is that of its writing",
        JOURNAL,
        "max(self.clock.now_ms(), last + 1)",
        "self.clock.now_ms()",
    ),
    (
        "a journal's file that is none hides no other one",
        JOURNAL,
        "        except ValueError as error:\n            content = error\n",
        "        except KeyError as error:\n            content = error\n",
    ),
    ("ids that were sealed twice meanwhile are told", REPAIR, "        self._not_doubled(topic)\n", ""),
    (
        "what lies behind maxReadPosition is left to the replay",
        RULES,
        "if row[2] <= index.max_read]",
        "if row[2] <= index.max_read or True]",
    ),
    (
        "a topic that was repaired is read from its own ledgers",
        LOADER,
        "opened(self.settings, topic, after, make=False)",
        "opened(self.settings, topic, after, compacted=True)",
    ),
    (
        "an undo unloads a topic that a client had loaded meanwhile",
        REPAIR,
        "        with suppress(RefusedError):  # a client may have had it loaded from what was replaced meanwhile\n"
        "            self.loader.unload(topic)\n",
        "",
    ),
    (
        "an undo over which a broker wrote its own index is none",
        REPAIR,
        "        self._refuse_written_over(topic, place)\n",
        "",
    ),
    ("a republished index has no tail", RULES, "last, ids_of([]))", "last, index.tail)"),
)
