"""The safety lines about a ZooKeeper that the cluster leaves, for tests/mutation.py: each once, with its tests."""

MIGRATION, LIVE = "udfs/formats/store_migration.py", "streaming/coordination/live_store.py"
MULTI_READ, LEDGERS = "streaming/adapters/zookeeper/multi_read.py", "streaming/sweep/ledgers.py"
OBJECTS = "streaming/sweep/tiered_storage/offloads.py"
TOMBSTONES = "streaming/sweep/snapshots/snapshot_sweep.py"
GATE, INSTANCE = "streaming/deletion/gate.py", "streaming/deletion/instance.py"
WATCH = "streaming/phase_one/watcher/watch_loop.py"
AUDIT, AUDIT_COMMAND = "streaming/audit/ledger_audit.py", "streaming/audit/command.py"
SNAPSHOT_AUDIT = "streaming/snapshots/audit/snapshot_audit.py"
REPAIRS, GUARDS = "streaming/snapshots/repair/wiring.py", "streaming/snapshots/guard/guards.py"
UNDO, LEFTOVERS = "streaming/undo/restore_ledgers.py", "streaming/space/leftover_znodes.py"
UNREAD = "streaming/space/reading/unread.py"
ADMIN, SECTIONS = "streaming/adapters/pulsar/admin_api/admin.py", "streaming/config/sections.py"
KERBEROS = "streaming/adapters/zookeeper/kerberos_login.py"
CONTRACT = "tests/contract/test_live_store.py"
# the tests that must notice, by the changed file
TESTS = {
    MIGRATION: (CONTRACT,),
    LIVE: (CONTRACT,),
    MULTI_READ: (CONTRACT,),
    ADMIN: ("tests/contract/test_pulsar_http.py",),
    SECTIONS: ("tests/unit/config/test_load.py",),
    KERBEROS: ("tests/unit/adapters/zookeeper/test_kerberos_login.py",),
    LEDGERS: ("tests/unit/sweep/test_transactions.py",),
    OBJECTS: ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    TOMBSTONES: ("tests/unit/sweep/snapshots/test_snapshot_sweep.py",),
    GATE: ("tests/unit/deletion/test_gate.py",),
    INSTANCE: ("tests/unit/deletion/test_instance.py",),
    WATCH: ("tests/unit/phase_one/watcher/test_watch_loop.py", CONTRACT),
    AUDIT: (CONTRACT,),
    AUDIT_COMMAND: (CONTRACT,),
    SNAPSHOT_AUDIT: (CONTRACT,),
    REPAIRS: (CONTRACT,),
    GUARDS: (CONTRACT,),
    UNDO: ("tests/unit/undo/test_restore_ledgers.py",),
    LEFTOVERS: ("tests/unit/space/test_leftover_znodes.py",),
    UNREAD: ("tests/unit/space/reading/test_measure.py",),
}
LIVE_STORE = (
    (
        "a login by Kerberos is that of the configured principal",
        KERBEROS,
        "if self.user is not None and self.user != self._login.principal:",
        "if False:",
    ),
    (
        "a migration's znode that can't be read is a migration",
        LIVE,
        "    return unknown_migration(node.detail) if isinstance",
        '    return "" if isinstance',
    ),
    (
        "a migration's znode that is not understood is a migration",
        MIGRATION,
        '        return unknown_migration(f"it contains no phase that we know: {found!r}")\n',
        '        return ""\n',
    ),
    (
        "a store without brokers' sessions is refused if the admin API answers",
        LIVE,
        "        if (running := brokers(store)) or not answers:\n",
        "        if (running := brokers(store)) or True:\n",
    ),
    (
        "a broker that uses another kind of store is refused",
        LIVE,
        "        if other := other_store(url):\n",
        "        if False and (other := other_store(url)):\n",
    ),
    (
        "BookKeeper's metadata in another kind of store are refused",
        ADMIN,
        '("metadataStoreUrl", "bookkeeperMetadataServiceUri")',
        '("metadataStoreUrl",)',
    ),
    (
        "zookeeper.hosts names ZooKeeper",
        SECTIONS,
        "    if store := other_store(hosts):\n",
        "    if False and (store := other_store(hosts)):\n",
    ),
    (
        "an admin API that refuses has answered",
        LIVE,
        "    except RefusedError:  # an answer, too\n        return True\n",
        "    except RefusedError:\n        return False\n",
    ),
    (
        "a broker's znode without a session is no broker",
        LIVE,
        "isinstance(node, Znode) and node.is_ephemeral for",
        "isinstance(node, Znode) for",
    ),
    ("only a session's znode is ephemeral", MULTI_READ, "is_ephemeral=owner != 0,", "is_ephemeral=True,"),
    (
        "the service waits for a broker's session",
        LIVE,
        "    if not brokers(store):\n",
        "    if False:\n",
    ),
    ("a chunk waits while no broker has a session", GATE, "        self.coordination.await_broker()\n", ""),
    (
        "no ledger is deleted once a migration has started",
        LEDGERS,
        "            stop_at_migration(self._store)\n",
        "",
    ),
    (
        "no object is deleted once a migration has started",
        OBJECTS,
        "        if NO_MIGRATION not in holding:",
        "        if False:",
    ),
    (
        "no tombstone is sent once a migration has started",
        TOMBSTONES,
        "        if NO_MIGRATION not in holding:",
        "        if False:",
    ),
    (
        "a chunk waits while a migration's znode exists",
        GATE,
        "        if migration := self.coordination.migration():\n",
        "        if False and (migration := self.coordination.migration()):\n",
    ),
    (
        "a start refuses a cluster that leaves ZooKeeper",
        INSTANCE,
        "    require_live_store(store, admin.metadata_stores, sleep=stop.wait)\n",
        "",
    ),
    (
        "the watcher's command refuses a cluster that leaves ZooKeeper",
        WATCH,
        "            require_live_store(store, partial(metadata_stores_of, settings), sleep=stop.wait)\n",
        "            store.read_many([])\n",
    ),
    (
        "the watcher stops before a turn once a migration has started",
        WATCH,
        "            check()\n",
        "",
    ),
    (
        "the watcher does not start once a migration has started",
        WATCH,
        "        stop_at_migration(store)\n        _hold",
        "        _hold",
    ),
    (
        "an audit command refuses a cluster that leaves ZooKeeper",
        AUDIT_COMMAND,
        "        require_live_store(process_store(settings), partial(metadata_stores_of, settings))\n",
        "        pass\n",
    ),
    (
        "an audit of a series refuses a cluster that leaves ZooKeeper",
        AUDIT,
        "    require_live_store(store, partial(metadata_stores_of, settings), sleep=engine.stop.wait)\n",
        "",
    ),
    (
        "an audit during which a migration starts has no findings",
        AUDIT,
        "        require_no_migration(tools.store)\n",
        "",
    ),
    (
        "an audit of snapshots during which a migration starts has no findings",
        SNAPSHOT_AUDIT,
        "        require_no_migration(tools.store)\n",
        "",
    ),
    (
        "repairs of snapshots refuse a cluster that leaves ZooKeeper",
        REPAIRS,
        "    require_live_store(process_store(settings), partial(metadata_stores_of, settings))\n",
        "",
    ),
    (
        "guards refuse a cluster that leaves ZooKeeper",
        GUARDS,
        "    require_live_store(clients.store, partial(metadata_stores_of, settings))\n",
        "",
    ),
    (
        "undo refuses a cluster that leaves ZooKeeper",
        UNDO,
        "    require_live_store(store, clients.pulsar.admin.metadata_stores)\n",
        "",
    ),
    (
        "leftovers are not searched in a store that the cluster leaves",
        LEFTOVERS,
        "    require_no_migration(store)\n    first",
        "    first",
    ),
    (
        "leftovers are not reported if a migration started during the search",
        LEFTOVERS,
        "    require_no_migration(store)\n    unreadable",
        "    unreadable",
    ),
    (
        "space reports that the content may be old",
        UNREAD,
        "        if why := migration(store):\n",
        "        if False and (why := migration(store)):\n",
    ),
)
