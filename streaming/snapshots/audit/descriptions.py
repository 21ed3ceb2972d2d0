"""What the findings of a snapshot audit mean to an operator, and what to do about each."""

from udfs.snapshots.audit import SnapshotClass, SnapshotReason

INTRODUCTION = (
    "Brokers keep the ids of aborted transactions in snapshots, so that they can hide the messages of these "
    "transactions. This audit compared the snapshots with the topics that they belong to. It changed nothing."
)
_REMOVE = "`ledger-reaper snapshots audit --publish` requests that the service removes it"
CLASS_MEANING = {
    SnapshotClass.MISSING: "a topic needs it to be loaded, and it can't be read",
    SnapshotClass.DANGER: "aborted messages are or may become readable, or the broker will fail at something",
    SnapshotClass.ORPHAN: "no topic uses it any more",
    SnapshotClass.WASTE: "ids of transactions whose messages are gone, or a segment that no index names yet; the "
    "broker drops or replaces them by itself",
    SnapshotClass.UNKNOWN: "something that decides could not be read",
    SnapshotClass.FOREIGN: "no broker wrote it; nobody should touch it before it is known who did",
    SnapshotClass.TOO_YOUNG: "only the second look saw it; audit again",
}
NEXT = {
    SnapshotReason.SEGMENT_LOST: "at a quiet time: take the topic's clients away, unload it (`pulsar-admin topics "
    "unload`), and run `ledger-reaper snapshots repair --topic`. Until then, don't unload it or restart its broker. "
    "Where its subscriptions can read everything, that is enough: once the ledger of the abort marker is trimmed, the "
    "broker does without the segment",
    SnapshotReason.INDEX_LOST: "don't unload the topic; end a transaction on it, which writes the index anew",
    SnapshotReason.DOUBLED_IDS: "at a quiet time, with its clients away: `ledger-reaper snapshots repair --topic`, "
    "which has the broker read the topic again and write each id once",
    SnapshotReason.NO_MAX_READ: "its broker writes this in the midst of a replay: while it replays, wait. Where it "
    "came to no end, or a repair was cut short: at a quiet time, with its clients away, `ledger-reaper snapshots "
    "repair --topic`. Don't unload the topic, and don't restart its broker, before that: each id would be sealed twice",
    SnapshotReason.IDS_LOST: "unload the topic: when it is loaded again it reads its snapshot (aborted messages are "
    "readable until then)",
    SnapshotReason.FLAG_OFF: "set transactionBufferSegmentedSnapshotEnabled=true in all brokers and restart them",
    SnapshotReason.NEAR_LIMIT: "let the topic's subscriptions read everything, or raise maxMessageSize, or switch to "
    "segmented snapshots; make transactionBufferSnapshotSegmentSize smaller for a segment",
    SnapshotReason.NULLS_VISIBLE: "`ledger-reaper snapshots compact --namespace`. Where a topic was to be deleted: "
    "unload it, delete it then, and have the snapshots that stay behind removed (`snapshots audit --publish`)",
    SnapshotReason.NO_GUARD: "`ledger-reaper snapshots guard`",
    SnapshotReason.LOAD_BLOCKED: "`ledger-reaper snapshots repair --namespace`, which names and removes just these "
    "messages; until then, don't unload topics of the namespace or restart brokers. Then find out who publishes to "
    "this system topic, and take away the right",
    SnapshotReason.OWNER_GONE: f"nothing urgent: it takes space only. {_REMOVE}",
    SnapshotReason.NOT_NAMED: f"nothing urgent: it takes space only. Where it is an orphan: {_REMOVE}",
    SnapshotReason.DEAD_IDS: "nothing: the next commit or abort on the topic drops them. Where none comes any more: "
    "`ledger-reaper snapshots trim --topic`",
    SnapshotReason.OWNER_UNKNOWN: "repair what keeps ZooKeeper or the broker from answering, then audit again",
    SnapshotReason.INDEX_UNREADABLE: "find out who publishes to the indexes topic, and take away the right; don't "
    "unload the topic before it has written its index anew",
    SnapshotReason.ODD_KEY: "find out who publishes to this system topic, and take away the right",
    SnapshotReason.FOREIGN_SCHEMA: "find out who publishes to this system topic, and take away the right",
    SnapshotReason.UNKNOWN_SCHEMA: "nothing, if brokers of another version write to this system topic, or did; their "
    "values can't be checked here. Otherwise find out who publishes to it, and take away the right",
    SnapshotReason.UNREADABLE: "find out who publishes to this system topic, and take away the right",
    SnapshotReason.OTHER_NAME: "find out who publishes to this system topic, and take away the right",
}
