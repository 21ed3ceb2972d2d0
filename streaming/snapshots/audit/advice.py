"""Explanations of the findings of a snapshot audit for operators, and what to do about each."""

from udfs.snapshots.topic_findings import SnapshotClass, SnapshotReason

INTRODUCTION = (
    "Brokers keep the ids of aborted transactions in snapshots, so that they can hide the messages of these "
    "transactions. This audit compared the snapshots with the topics that they belong to. It changed nothing."
)
NOT_LOADED = "namespaces left out"  # the name of a count in the certificate; LEFT_OUT gives the reason
LEFT_OUT = "no broker has all their snapshot topics loaded. `ledger-reaper snapshots audit` loads and reads them"
_REMOVE = "`ledger-reaper snapshots audit --publish` requests that the service removes it"
_REVOKE = "find out who publishes to this system topic, and revoke the permission"
CLASS_MEANING = {
    SnapshotClass.MISSING: "a topic needs it to load, and it can't be read",
    SnapshotClass.DANGER: "aborted messages are or may become readable, or an operation of the broker will fail",
    SnapshotClass.ORPHAN: "no topic uses it any more",
    SnapshotClass.WASTE: "ids of transactions whose messages are gone, or a segment that no index names yet; the "
    "broker drops or replaces them by itself",
    SnapshotClass.UNKNOWN: "a fact that decides could not be read",
    SnapshotClass.FOREIGN: "no broker wrote it; don't touch it before its publisher is known",
    SnapshotClass.TOO_YOUNG: "only the second pass found it; audit again",
}
NEXT = {
    SnapshotReason.SEGMENT_LOST: "at a quiet time: disconnect the topic's clients, unload it (`pulsar-admin topics "
    "unload`), and run `ledger-reaper snapshots repair --topic`. Until then, don't unload it or restart its broker. "
    "If its subscriptions can read to the topic's end, no repair is needed: brokers can then trim the ledger of the "
    "abort marker, and after that no broker needs the segment",
    SnapshotReason.INDEX_LOST: "don't unload the topic; end a transaction on it, which writes the index again",
    SnapshotReason.DOUBLED_IDS: "at a quiet time, with its clients disconnected: `ledger-reaper snapshots repair "
    "--topic`, which makes the broker read the topic again and write each id once",
    SnapshotReason.NO_MAX_READ: "its broker writes this during a replay: while it replays, wait. If the replay did not "
    "complete, or a repair was interrupted: at a quiet time, with clients disconnected, run `ledger-reaper "
    "snapshots repair --topic`. Until then, don't unload the topic or restart its broker: it would seal each id twice",
    SnapshotReason.IDS_LOST: "unload the topic: when it is loaded again it reads its snapshot (aborted messages are "
    "readable until then)",
    SnapshotReason.FLAG_OFF: "set transactionBufferSegmentedSnapshotEnabled=true in all brokers and restart them",
    SnapshotReason.NEAR_LIMIT: "let the topic's subscriptions read everything, or raise maxMessageSize, or switch to "
    "segmented snapshots; for a segment, reduce transactionBufferSnapshotSegmentSize",
    SnapshotReason.NULLS_VISIBLE: "`ledger-reaper snapshots compact --namespace`. To delete a topic before that: "
    "unload it, delete it, and have its remaining snapshots removed (`snapshots audit --publish`)",
    SnapshotReason.NO_GUARD: "`ledger-reaper snapshots guard`",
    SnapshotReason.LOAD_BLOCKED: "`ledger-reaper snapshots repair --namespace`, which names and removes only these "
    "messages; until then, don't unload topics of the namespace or restart brokers. Then find out who publishes to "
    "this system topic, and revoke the permission",
    SnapshotReason.LOAD_IN_DOUBT: "nothing, if brokers of another version write to this system topic and topics of the "
    "namespace load. Otherwise don't unload topics of the namespace or restart brokers; find out who publishes to it, "
    "and revoke the permission; `ledger-reaper snapshots repair --namespace` names what can be removed, and how",
    SnapshotReason.OWNER_GONE: f"nothing urgent: it takes space only. {_REMOVE}",
    SnapshotReason.NOT_NAMED: f"nothing urgent: it takes space only. If it is an orphan: {_REMOVE}",
    SnapshotReason.DEAD_IDS: "nothing: the next commit or abort on the topic drops them. If the topic has no more "
    "transactions: `ledger-reaper snapshots trim --topic`",
    SnapshotReason.OWNER_UNKNOWN: "repair what keeps ZooKeeper or the broker from answering, then audit again",
    SnapshotReason.INDEX_UNREADABLE: "find out who publishes to the indexes topic, and revoke the permission; don't "
    "unload the topic before it has written its index again",
    SnapshotReason.ODD_KEY: _REVOKE,
    SnapshotReason.FOREIGN_SCHEMA: _REVOKE,
    SnapshotReason.UNKNOWN_SCHEMA: "nothing, if brokers of another version write to this system topic, or did; their "
    "values can't be checked here. Otherwise find out who publishes to it, and revoke the permission",
    SnapshotReason.UNREADABLE: _REVOKE,
    SnapshotReason.OTHER_NAME: _REVOKE,
}
