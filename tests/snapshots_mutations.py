"""Lines that keep a broker from sealing ids twice after a repair, for tests/mutation.py, with the tests that notice."""

REPAIR, FIRST = "streaming/snapshots/repair.py", "streaming/snapshots/first_index.py"
JOURNAL, REPAIRED = "streaming/snapshots/repair_journal.py", "streaming/snapshots/repaired.py"
LOADING, READING = "streaming/snapshots/loading.py", "streaming/snapshots/reading.py"
REPLACING, TAKE_BACK = "streaming/snapshots/replacing.py", "streaming/snapshots/take_back.py"
RULES, AUDIT = "udfs/snapshots/repairing.py", "udfs/snapshots/audit.py"
LOADER = "streaming/snapshots/repairs.py"
GUARD, ADMIN = "streaming/snapshots/guard.py", "streaming/adapters/pulsar/admin.py"
_UNIT = "tests/unit/snapshots"
SNAPSHOTS_TESTS = {
    LOADER: (f"{_UNIT}/test_repairs.py",),
    REPAIR: (f"{_UNIT}/test_repair.py",),
    LOADING: (f"{_UNIT}/test_loading.py", f"{_UNIT}/test_repair.py"),
    READING: (f"{_UNIT}/test_reading.py",),
    REPLACING: (f"{_UNIT}/test_replacing.py", f"{_UNIT}/test_repair.py", f"{_UNIT}/test_take_back.py"),
    TAKE_BACK: (f"{_UNIT}/test_take_back.py", f"{_UNIT}/test_replacing.py", f"{_UNIT}/test_repair.py"),
    JOURNAL: (f"{_UNIT}/test_repair_journal.py",),
    REPAIRED: (f"{_UNIT}/test_repair.py",),
    FIRST: (f"{_UNIT}/test_repair.py",),
    GUARD: (f"{_UNIT}/test_guard.py",),
    ADMIN: ("tests/contract/test_snapshot_admin.py",),
    AUDIT: ("tests/unit/udfs/snapshots/test_audit.py",),
    RULES: (f"{_UNIT}/test_repair.py", "tests/unit/udfs/snapshots/test_repairing.py"),
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
        TAKE_BACK,
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
        "    if index is not None and is_half(index):\n",
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
        LOADING,
        "        self._once_more()\n        self.replacing.loader.unload(self.topic)  # a client may have had",
        "        self.replacing.loader.unload(self.topic)  # a client may have had",
    ),
    (
        "a topic that a client had loaded from what was replaced is unloaded",
        LOADING,
        "        self.replacing.loader.unload(self.topic)  # a client may have had it loaded from what its",
        "        #",
    ),
    (
        "a repair whose broker writes nothing leaves its own index",
        LOADING,
        "        if lacks:\n            self._once_more()\n",
        "",
    ),
    (
        "what was replaced in the midst of a repair is in the journal",
        LOADING,
        "        name = self.replacing.write_down(self.topic, index, self.new, Act.AGAIN)\n",
        '        name = ""\n',
    ),
    (
        "an undo puts back what the repair found",
        TAKE_BACK,
        "            if entry.is_again and not entry.begins:\n",
        "            if False:\n",
    ),
    (
        "an undo goes back over no repair of half a replay",
        TAKE_BACK,
        "            if entry.is_again:  # and",
        "            if False:  # and",
    ),
    (
        "an undo puts back no index of half a replay",
        TAKE_BACK,
        "if is_half(index):",
        "if False:",
    ),
    ("an undo puts back no index of another topic", TAKE_BACK, "if index.topic != topic:", "if False:"),
    (
        "an undo does not count what was never sent",
        TAKE_BACK,
        "            if sent is Sent.NO:\n",
        "            if False:\n",
    ),
    (
        "what was sent counts though it was not marked",
        REPLACING,
        "        if entry.was_sent or entry.by == now:\n",
        "        if True:\n            return Sent.YES if entry.was_sent else Sent.NO\n        if True:\n",
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
        "        return None if self.looks.lost_in(topic, index_of(last.name, last.by)) else last\n",
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
        "        except (ValueError, RecursionError):",
        "        except (KeyError, RecursionError):",
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
        TAKE_BACK,
        "            self.replacing.loader.unload(topic)  # a client may have had it loaded from what was replaced "
        "meanwhile\n",
        "",
    ),
    (
        "an undo over which a broker wrote its own index is none",
        TAKE_BACK,
        "            self._refuse_written_over(topic, place)\n",
        "",
    ),
    ("a republished index has no tail", RULES, "last, ids_of([]))", "last, index.tail)"),
    (
        "a topic is not loaded from an index of half a replay",
        LOADING,
        "                if more.buffer(self.topic) is None:\n                    self._replace_half()\n",
        "",
    ),
    (
        "a topic that a client had loaded from half a replay is unloaded",
        LOADING,
        "            self.replacing.loader.unload(self.topic)  # a client may have had it loaded from that",
        "            #",
    ),
    (
        "an index whose segments are lost by now is not published once more",
        LOADING,
        "        if lost := self.replacing.looks.lost_in(self.topic, decode_index(self.new)):\n",
        "        if lost := 0:\n",
    ),
    (
        "a repair that was verified is over though its broker wrote nothing",
        REPAIR,
        "        if not not_verified:  # also",
        "        if not not_verified and not not_written:  # also",
    ),
    (
        "a topic of indexes that does not reach back says nothing",
        REPLACING,
        "Sent.NO if behind[0] in ledgers else Sent.UNKNOWN",
        "Sent.NO",
    ),
    (
        "an index that lay there before was not sent by a later repair",
        REPLACING,
        " and read.position > behind:",
        ":",
    ),
    (
        "an undo is refused where nobody knows whether a repair was sent",
        TAKE_BACK,
        "            if sent is Sent.UNKNOWN:",
        "            if False:",
    ),
    (
        "who may not unload a topic does not take it for one that is not loaded",
        ADMIN,
        '.NOT_FOUND:\n            return False\n        self._done(answer, f"unload',
        '.NOT_FOUND or not answer.ok:\n            return False\n        self._done(answer, f"unload',
    ),
    (
        "a broker that replays a topic is not disturbed",
        RULES,
        " if is_replaying(facts) else",
        " if False else",
    ),
    ("a replay that goes on is no alarm", AUDIT, "    if is_replaying(facts):\n", "    if False:\n"),
    (
        "an index of which no marker lives is none of half a replay",
        AUDIT,
        "    return lives and any(",
        "    return bool(facts.named) and any(",
    ),
    (
        "the guard stands before what an undo sends",
        TAKE_BACK,
        "        self.replacing.hold(topic, places)\n        self.replacing.loader",
        "        self.replacing.loader",
    ),
    (
        "the guard stands before what an undo sent",
        TAKE_BACK,
        "                self.replacing.hold(topic, places)  # the",
        "                pass  # the",
    ),
    (
        "a guard that holds moves back only as far as something is",
        GUARD,
        "(place for place in places if place[0] in ledgers)",
        "places",
    ),
    ("a guard that holds never moves forward", GUARD, " and guarded.position >= first:", ":"),
    (
        "a journal's copy does not count",
        JOURNAL,
        "        if found := _NAME.fullmatch(name):",
        '        if found := re.match(r"([0-9]{15,})()", name):',
    ),
    (
        "two processes never write the same file of the journal",
        JOURNAL,
        "-{_digest(old.topic)}-{self.chance()}{_ENTRY}",
        "{_ENTRY}",
    ),
    (
        "a file without end ends nothing about other topics",
        JOURNAL,
        "        except (ValueError, RecursionError):",
        "        except ValueError:",
    ),
    (
        "a number without end ends nothing about other topics",
        JOURNAL,
        "ValueError, OverflowError, binascii.Error",
        "ValueError, binascii.Error",
    ),
    (
        "what is about the topic and can't be read ends the command",
        JOURNAL,
        "        if is_ours:\n            raise SafetyError",
        "        if False:\n            raise SafetyError",
    ),
    (
        "what an open transaction hides was not verified",
        READING,
        "        if buffer.max_read >= last:\n",
        "        if True:\n",
    ),
    (
        "segments are not published where a replay was begun",
        REPAIR,
        "        if remedy is Remedy.REPUBLISH and begun.by == empty_index(topic):\n",
        "        if False:\n",
    ),
)
