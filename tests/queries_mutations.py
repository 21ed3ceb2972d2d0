"""The safety lines of queries, accounts and ownership, for tests/mutation.py: each once, with the tests that notice."""

NAMES, SHORT_NAMES = "streaming/queries/names.py", "streaming/queries/short_names.py"
RUNNING, LANES = "streaming/queries/running.py", "streaming/queries/lanes.py"
ANOTHER_WAY = "streaming/deletion/another_way.py"
# which tests have to notice, by the file that is changed
TESTS = {
    NAMES: ("tests/unit/queries",),
    SHORT_NAMES: ("tests/unit/queries",),
    RUNNING: ("tests/unit/queries",),
    LANES: ("tests/unit/queries",),
    ANOTHER_WAY: ("tests/unit/deletion/test_another_way.py",),
}
QUERIES = (
    ("queries are named by the whole digest", NAMES, ".hexdigest()\n", ".hexdigest()[:8]\n"),
    (
        "a topic whose query's name is taken is not read",
        RUNNING,
        "for each in self._running if each.name == query.name",
        "for each in () if each.name == query.name",
    ),
    (
        "a fault of a checkpoint parks one query",
        LANES,
        "isinstance(result, FencedError)",
        "isinstance(result, FencedError.__base__)",
    ),
    (
        "a short-named checkpoint moves only if it read one topic",
        SHORT_NAMES,
        " or _topics_of(old) != set(query.topics)",
        "",
    ),
    (
        "a short-named checkpoint never replaces a newer one",
        SHORT_NAMES,
        'newest <= newest_number(new.location, "offsets")',
        "newest < 0",
    ),
    ("another query's batch is not read another way", ANOTHER_WAY, "        _require_own(query, checkpoint)\n", ""),
)
