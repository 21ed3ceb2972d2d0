"""Reports of space made by hand."""

from udfs.space.causes import Cause
from udfs.space.space_report import BookieSpace, Share, SpaceReport, Subscription, TopicPolicy, Unknown

MIB = 1 << 20
AT_MS = 1_764_200_000_000
DAY_MS = 86_400_000
CARTS = "persistent://shop/prod/carts"
CARTS_0 = f"{CARTS}-partition-0"
CARTS_1 = f"{CARTS}-partition-1"
LOGS = "persistent://ops/prod/logs"
CLICKS = "persistent://shop/test/clicks"


def share(cause: Cause, topic: str = "", one_copy: int = MIB, **fields: object) -> Share:
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    defaults: dict[str, object] = {"ledgers": 1, "stored": 2 * one_copy, "namespace": namespace}
    return Share(cause=cause, topic=topic, one_copy=one_copy, **(defaults | fields))  # type: ignore[arg-type]


SHARES = (
    share(Cause.BACKLOG, CARTS_0, 40 * MIB, subscription="billing", ledgers=4),
    share(Cause.BACKLOG, CARTS_1, 20 * MIB, subscription="billing", ledgers=2, is_exact=False),
    share(Cause.PARTLY_READ, CARTS_1, 2 * MIB, subscription="billing"),
    share(Cause.ACKNOWLEDGED_BEHIND_GAP, CARTS_0, 5 * MIB, subscription="billing"),
    share(Cause.BROKER_CURSOR, LOGS, 3 * MIB, subscription="__compaction"),
    share(Cause.RETENTION, LOGS, 30 * MIB, ledgers=3),
    share(Cause.RETENTION, CLICKS, 10 * MIB),
    share(Cause.TRIMMABLE, CLICKS, 6 * MIB),
    share(Cause.OPEN_ACTIVE, LOGS, MIB, is_exact=False),
    share(Cause.TIERED, CLICKS, 50 * MIB, stored=0),
    share(Cause.MISSING, CLICKS, 4 * MIB, stored=0),
    share(Cause.UNREFERENCED, "", 12 * MIB, namespace="shop/prod", ledgers=7),
    share(Cause.FOREIGN, "", 8 * MIB, ledgers=2),
)
SUBSCRIPTIONS = (
    Subscription(
        topic=CARTS_0,
        name="billing",
        backlog=45 * MIB,
        acknowledged=5 * MIB,
        frees=40 * MIB,
        last_active_ms=AT_MS - 9 * DAY_MS,
        is_connected=False,
    ),
    Subscription(topic=CARTS_1, name="billing", backlog=22 * MIB, frees=20 * MIB, is_exact=False),
    Subscription(topic=CARTS_0, name="audit", backlog=10 * MIB, last_active_ms=AT_MS, is_connected=True),
    Subscription(topic=LOGS, name="__compaction", is_of_broker=True, backlog=3 * MIB, last_active_ms=1),
    Subscription(topic=LOGS, name="done", backlog=0, last_active_ms=1),
)
BOOKIES = (
    BookieSpace(
        bookie_id="bk-0:3181",
        url="http://bk-0:8000",
        ledgers=20,
        live=130 * MIB,
        reported_live=128 * MIB,
        reported_ledgers=27,
        entry_logs=3,
        disk_total=1000 * MIB,
        disk_free=300 * MIB,
        reclaimed=7 * MIB,
        gc_wait_seconds=900,
        minor_threshold=0.2,
        major_threshold=0.5,
        last_major_ms=AT_MS - DAY_MS,
    ),
    BookieSpace(bookie_id="bk-1:3181", ledgers=20, live=140 * MIB),
    BookieSpace(bookie_id="bk-2:3181", url="http://bk-2:8000", ledgers=2, live=4 * MIB, faults=("/metrics: refused",)),
)
POLICIES = {
    LOGS: TopicPolicy(retention_minutes=10_080, retention_megabytes=-1, level="topic", is_loaded=True),
    CLICKS: TopicPolicy(retention_minutes=60, retention_megabytes=100, level="namespace", is_loaded=False),
}
REPORT = SpaceReport(
    at_ms=AT_MS,
    seconds=2.5,
    cluster="east",
    ledgers=24,
    topics=4,
    shares=SHARES,
    subscriptions=SUBSCRIPTIONS,
    bookies=BOOKIES,
    policies=POLICIES,
)
EMPTY = SpaceReport(at_ms=AT_MS, seconds=0.1, ledgers=0, topics=0, shares=())
UNKNOWN = Unknown(what="/managed-ledgers/a/b/persistent/c", detail="no right", at_least=0, at_most=3 * MIB)
