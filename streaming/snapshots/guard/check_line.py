"""The line of `check` about snapshots: whether every namespace with segments has a guard or unlimited retention."""

from streaming.adapters.pulsar.snapshots.snapshot_store import is_guarded
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import FindingFilters
from streaming.check.preflight import Line, Status
from streaming.clients import CommandClients
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit.facts import segments_topics
from streaming.snapshots.snapshot_namespaces import loaded, namespaces_with_snapshots, snapshot_topics
from streaming.terminal import some_of
from udfs import columns as c

_WHAT = "guards of snapshots"
_NAMED = 5


def guard_line(settings: Settings, clients: CommandClients) -> Line:
    """Check that each namespace with segments has a guard before all named segments. Raises no ReaperError."""
    try:
        with snapshot_topics(settings) as topics:
            return line_of(clients.store, clients.broker, topics)
    except ReaperError as error:
        return Line(
            what=_WHAT,
            status=Status.NOTE,
            says=f"not known: {error}",
            do="solve the problems above, then check again",
        )


def line_of(store: MetadataStore, broker: Broker, topics: SnapshotTopics) -> Line:
    """Check the guards with these clients, like guard_line; loads no topic. Raises UnavailableError."""
    namespaces, problems = namespaces_with_snapshots(store, FindingFilters())
    readable = loaded(store, broker, namespaces)
    problems += readable.problems
    rows = segments_topics(store, broker, topics.admin, readable.namespaces)
    without: list[str] = []
    late: list[str] = []
    for row in rows:
        namespace = str(row[a.NAMESPACE])
        if row[s.KEEPS_ALL]:
            continue
        if row.get(s.GUARD_LEDGER) is None:
            without.append(namespace)
            problems += [(namespace, row[c.DETAIL])] if row[c.DETAIL] else []
            continue
        try:
            # a guard keeps the messages after it, so it is compared with the positions that indexes name, as in the
            # audit
            if not is_guarded(topics, namespace):
                late.append(namespace)
        except ReaperError as error:
            problems.append((namespace, str(error)))
    no_guard = f"{len(without)} of {len(rows)} namespaces with segments have no guard: {some_of(without, _NAMED)}"
    too_late = f"{len(late)} have a guard that is after segments which indexes name: {some_of(late, _NAMED)}"
    says = [no_guard] * bool(without) + [too_late] * bool(late)
    says += [f"{problems[0][0]}: {problems[0][1]}"] if problems else []
    left_out = len(readable.left_out) - len(readable.problems)
    unread = f"{left_out} namespaces with snapshots were left out, since brokers do not have them loaded"
    says += [unread] if left_out else []
    if without or late:
        do = "`ledger-reaper snapshots guard`, or set snapshots.guard_every_seconds: else topics may not load again"
        return Line(what=_WHAT, status=Status.NOTE, says="; ".join(says), do=do)
    if problems:
        return Line(
            what=_WHAT,
            status=Status.NOTE,
            says="; ".join(says),
            do="give this service's role permission to list the topics and to read their indexes",
        )
    guarded = f"{len(rows)} namespaces with segments, all guarded" if rows else "no segments"
    return Line(what=_WHAT, status=Status.OK, says="; ".join([*([guarded] if rows or not says else []), *says]))
