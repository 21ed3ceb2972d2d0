"""Joins of the snapshot audit: messages with owners, indexes with the segments that they name, ids with ids.

The rules are in udfs/snapshots/topic_findings.py; this module collects their facts.
"""

from streaming.audit import audit_columns as a
from streaming.audit.tables import Rows
from streaming.snapshots.audit import snapshot_columns as s
from udfs import columns as c
from udfs.snapshots.keys import KEEPER, SnapshotKind
from udfs.snapshots.topic_findings import IndexState
from udfs.snapshots.values import Fault

# The most values in one row, since a sender can publish any number. The named segments need no such bound: they come
# from an index, which is one message.
VALUES_AT_ONCE = 5_000
_TOPIC = f"{a.NAMESPACE}, {c.TOPIC_NAME}"
_SEGMENT = f"{a.NAMESPACE}, {s.LEDGER}, {s.ENTRY}, {c.TOPIC_NAME}, {s.SEQUENCE}"
_IS_INDEX = f"{s.KIND} = '{SnapshotKind.INDEX.value}'"
_IS_SEGMENT = f"{s.KIND} = '{SnapshotKind.SEGMENT.value}'"


def read_of(messages: Rows) -> Rows:
    """Return the messages of completely read namespaces, without our own record."""
    # in others, unread messages would appear to be missing
    unread = messages.select(f"SELECT DISTINCT {a.NAMESPACE} FROM rows WHERE {a.PATH} IS NOT NULL")
    return messages.select(
        f"""
        FROM rows ANTI JOIN unread USING ({a.NAMESPACE})
        WHERE {a.PATH} IS NULL AND NOT coalesce(ends_with({c.TOPIC_NAME}, $keeper), false)
        """,
        unread=unread,
        keeper=f"/{KEEPER}",
    )


def latest(messages: Rows) -> Rows:
    """Return the latest message of each key; it may be a tombstone."""
    return messages.select(
        f"""
        FROM rows WHERE NOT {s.IS_RAW}
        QUALIFY row_number() OVER (PARTITION BY {a.NAMESPACE}, {s.KIND}, {s.KEY} ORDER BY {s.NUMBER} DESC) = 1
        """
    )


def live(messages: Rows) -> Rows:
    """Return the latest value of each key, without tombstones."""
    return latest(messages).where(f"NOT {s.IS_NULL} OR {s.FAULT} <> ''")


def named(values: Rows, messages: Rows) -> Rows:
    """Return a row for each segment that an index names, with the ids read at its position, if any."""
    listed = values.select(
        f"""
        SELECT * EXCLUDE (segment), unnest(segment)
        FROM (SELECT {_TOPIC}, unnest({s.NAMED}) AS segment FROM rows WHERE {_IS_INDEX})
        """
    )
    # a broker may read a segment whose schema is not known here: it is not lost
    stored = messages.select(
        f"""
        SELECT DISTINCT ON ({_SEGMENT}) {_SEGMENT}, {s.MOST}, {s.LEAST}, true AS {s.IS_READABLE} FROM rows
        WHERE {s.IS_RAW} AND {_IS_SEGMENT} AND NOT {s.IS_NULL} AND {s.FAULT} IN ('', '{Fault.UNKNOWN_SCHEMA.value}')
        """
    )
    return listed.select(
        f"""
        SELECT * REPLACE (coalesce({s.IS_READABLE}, false) AS {s.IS_READABLE})
        FROM rows LEFT JOIN stored USING ({_SEGMENT})
        """,
        stored=stored,
    )


def ids(segments: Rows, owners: Rows) -> Rows:
    """Return for each topic how many ids are in several of its segments, and how many distinct ids are live.

    An id is live if the topic still has the ledger of its segment's last marker.
    """
    ledgers = owners.select(f"SELECT {c.TOPIC_NAME}, unnest({s.LEDGERS}) AS {s.MARKER_LEDGER}, true AS lives FROM rows")
    each = segments.where(s.IS_READABLE).select(
        f"""
        SELECT {_TOPIC}, lives, unnest({s.MOST}) AS most_bits, unnest({s.LEAST}) AS least_bits
        FROM rows LEFT JOIN ledgers USING ({c.TOPIC_NAME}, {s.MARKER_LEDGER})
        """,
        ledgers=ledgers,
    )
    same_id = f"{_TOPIC}, most_bits, least_bits"
    by_id = f"SELECT {same_id}, count(*) AS times, bool_or(lives) AS lives FROM rows GROUP BY {same_id}"
    return each.select(by_id).select(
        f"""
        SELECT {_TOPIC}, count(*) FILTER (times > 1) AS {s.DOUBLED_IDS},
            count(*) FILTER (coalesce(lives, false)) AS {s.LIVE_IDS}
        FROM rows GROUP BY {_TOPIC}
        """
    )


def topics(messages: Rows, owners: Rows, segments_topics: Rows) -> Rows:
    """Return the facts of every topic with a valid value, in parts of VALUES_AT_ONCE values."""
    keep = messages.tables.keep
    read = keep(read_of(messages))
    values = keep(live(read))
    true_values = values.where(f"{s.FAULT} = ''")
    segments = keep(named(true_values, read))
    state = f"CASE WHEN {s.FAULT} = '' THEN '{IndexState.READABLE.value}' ELSE '{IndexState.FAULTY.value}' END"
    standing = values.select(
        f"""
        SELECT {_TOPIC}, max({state}) FILTER ({_IS_INDEX}) AS {s.INDEX},
            count(*) FILTER ({_IS_SEGMENT} AND {s.FAULT} = '') AS segments
        FROM rows GROUP BY {_TOPIC}
        """
    )
    segment = ", ".join(
        f"{name} := {name}" for name in (s.SEQUENCE, s.LEDGER, s.ENTRY, s.MARKER_LEDGER, s.MARKER_ENTRY, s.IS_READABLE)
    )
    listed = segments.select(f"SELECT {_TOPIC}, list(struct_pack({segment})) AS {s.NAMED} FROM rows GROUP BY {_TOPIC}")
    return _parts(true_values, owners).select(
        f"""
        FROM rows LEFT JOIN owners USING ({c.TOPIC_NAME}) JOIN standing USING ({_TOPIC})
        LEFT JOIN listed USING ({_TOPIC}) LEFT JOIN ids USING ({_TOPIC})
        LEFT JOIN segments_topics USING ({a.NAMESPACE})
        """,
        owners=owners,
        standing=standing,
        listed=listed,
        ids=ids(segments, owners),
        segments_topics=segments_topics.select(f"SELECT {a.NAMESPACE}, {s.SEGMENT_LEDGERS} FROM rows"),
    )


def namespaces(messages: Rows, segments_topics: Rows) -> Rows:
    """Return for each namespace with segments: visible tombstones, and whether all named segments are guarded."""
    read = messages.tables.keep(read_of(messages))
    values = live(read).where(f"{s.FAULT} = ''")
    nulls = read.select(
        f"""
        SELECT {a.NAMESPACE}, count(*) AS {s.NULLS} FROM rows
        WHERE {_IS_SEGMENT} AND NOT {s.IS_RAW} AND {s.IS_NULL} GROUP BY {a.NAMESPACE}
        """
    )
    position = f"row({s.LEDGER}, {s.ENTRY})"
    # only of readable segments: a guard can't keep the others
    lowest = named(values, read).select(
        f"""
        SELECT {a.NAMESPACE}, min({position}) FILTER ({s.IS_READABLE}) AS {s.LOWEST},
            count(*) FILTER ({s.IS_READABLE}) AS segments
        FROM rows GROUP BY {a.NAMESPACE}
        """
    )
    is_before = f"{s.GUARD_LEDGER} IS NOT NULL AND row({s.GUARD_LEDGER}, {s.GUARD_ENTRY}) < {s.LOWEST}"
    return segments_topics.select(
        f"""
        SELECT *, {s.KEEPS_ALL} OR {s.LOWEST} IS NULL OR coalesce({is_before}, false) AS {s.IS_GUARDED}
        FROM rows LEFT JOIN lowest USING ({a.NAMESPACE}) LEFT JOIN nulls_visible USING ({a.NAMESPACE})
        """,
        lowest=lowest,
        nulls_visible=nulls,
    )


def foreign(messages: Rows) -> Rows:
    """Return the latest messages with a Fault, except those that block or may block loading."""
    return live(read_of(messages)).where(f"{s.FAULT} <> '' AND NOT {s.IS_BLOCKING} AND NOT {s.IS_DOUBTFUL}")


def blocking(messages: Rows) -> Rows:
    """Return the messages that keep topics from loading, also replaced messages: brokers read those, too."""
    return read_of(messages).where(s.IS_BLOCKING)


def doubtful(messages: Rows) -> Rows:
    """Return the messages that may keep topics from loading, also replaced messages."""
    return read_of(messages).where(s.IS_DOUBTFUL)


def owners_of(messages: Rows) -> Rows:
    """Return the topics that have values."""
    return live(read_of(messages)).select(f"SELECT DISTINCT {c.TOPIC_NAME} FROM rows WHERE {s.FAULT} = ''")


def _parts(values: Rows, owners: Rows) -> Rows:
    columns = (s.KIND, s.KEY, s.LEDGER, s.ENTRY, c.BYTES, s.IDS, s.DEAD_IDS, s.SEQUENCE, s.MARKER_LEDGER)
    fields = (*columns, s.MARKER_ENTRY, s.MAX_READ_LEDGER, s.MAX_READ_ENTRY)
    value = ", ".join(f"{name} := {name}" for name in fields)
    ordered = f"row_number() OVER (PARTITION BY {_TOPIC} ORDER BY {s.KIND}, {s.KEY})"
    numbered = _dead_ids(values, owners).select(f"SELECT *, ({ordered} - 1) // {VALUES_AT_ONCE} AS {s.PART} FROM rows")
    return numbered.select(
        f"""
        SELECT {_TOPIC}, {s.PART}, list(struct_pack({value}) ORDER BY {s.KIND}, {s.KEY}) AS {s.VALUES}
        FROM rows GROUP BY {_TOPIC}, {s.PART}
        """
    )


def _dead_ids(values: Rows, owners: Rows) -> Rows:
    """Add how many ids of a single snapshot have markers in ledgers that are gone."""
    key = f"{a.NAMESPACE}, {s.KIND}, {s.KEY}"
    dead = values.select(
        f"""
        SELECT {key}, sum(CASE WHEN list_contains(coalesce({s.LEDGERS}, []), marker.{s.LEDGER}) THEN 0
            ELSE marker.{s.IDS} END)::BIGINT AS {s.DEAD_IDS}
        FROM (SELECT {key}, {c.TOPIC_NAME}, unnest({s.MARKERS}) AS marker FROM rows)
        LEFT JOIN owners USING ({c.TOPIC_NAME}) GROUP BY {key}
        """,
        owners=owners,
    )
    counted = f"SELECT * REPLACE (coalesce({s.DEAD_IDS}, 0) AS {s.DEAD_IDS}) FROM rows LEFT JOIN dead USING ({key})"
    return values.select(counted, dead=dead)
