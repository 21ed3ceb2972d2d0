"""The safety lines of the client for tests/mutation.py: each once, with the tests that must notice."""

_PACKAGE = "clients/python/src/ledger_reaper_client"
LANES, MARKS = f"{_PACKAGE}/lanes.py", f"{_PACKAGE}/marks.py"
SETTINGS, CREDENTIALS = f"{_PACKAGE}/settings.py", f"{_PACKAGE}/credentials.py"
# the tests that must notice, by the changed file
TESTS = {
    LANES: ("tests/unit/client/test_lanes.py",),
    MARKS: ("tests/unit/client/test_marks.py",),
    SETTINGS: ("tests/unit/client/test_settings.py",),
    CREDENTIALS: ("tests/unit/client/test_settings.py",),
}
CLIENT = (
    (
        "the client sends nothing to a topic without partitions",
        LANES,
        "    if partitions == 0:\n        raise",
        "    if False:\n        raise",
    ),
    (
        "the client sends nothing to a partition without the service's subscription",
        LANES,
        "        if encode_name(settings.subscription) not in stats.cursors:\n            _subscribe",
        "        if False:\n            _subscribe",
    ),
    (
        "the client creates lanes only",
        LANES,
        '    if not is_lane(topic):\n        raise RefusedError(\n            f"there is no topic',
        '    if False:\n        raise RefusedError(\n            f"there is no topic',
    ),
    (
        "the client sends nothing to a topic that discards unread requests after a time",
        LANES,
        "    if ttl.ok and isinstance(ttl.body, int) and ttl.body > 0:\n",
        "    if False:\n",
    ),
    (
        "the client sends nothing to a topic that evicts unread requests",
        LANES,
        "    if any(_evicts(quota) for quota in quotas.values()):\n",
        "    if False:\n",
    ),
    (
        "a request in a lane that was deleted since is no success",
        LANES,
        '    fault = "" if partitions else "it was deleted"\n',
        '    fault = ""\n',
    ),
    (
        "a request in a lane that lost its subscription is no success",
        LANES,
        '            fault = f"{partition} has no subscription {settings.subscription}"\n',
        "            pass\n",
    ),
    (
        "the client removes a mark only if its ledger is gone",
        MARKS,
        "for name, receipt in receipts.items() if receipt.is_gone}",
        "for name, receipt in receipts.items()}",
    ),
    (
        "the client requests no ledger that its topic lists",
        MARKS,
        "        asked = marked.all.without(target.listed, unlisted)\n",
        "        asked = marked.all\n",
    ),
    (
        "the client reads marks back",
        MARKS,
        "        if not properties.items() <= self._topic(target.name).properties.items():\n",
        "        if False:\n",
    ),
    (
        "the client's marks leave room in the znode",
        MARKS,
        "    if size > MOST_ZNODE_BYTES:\n",
        "    if False:\n",
    ),
    (
        "the client sends a token over TLS or to its own machine only",
        SETTINGS,
        "        if not may_carry_secret(url):  # after a redirect\n",
        "        if False:\n",
    ),
    (
        "the client starts with no secret that would go unencrypted to another machine",
        SETTINGS,
        "        if self.sends_secret and not all(",
        "        if False and not all(",
    ),
    (
        "the client sends an OAuth2 secret over TLS or to its own machine only",
        CREDENTIALS,
        "    if not may_carry_secret(url):\n",
        "    if False:\n",
    ),
)
