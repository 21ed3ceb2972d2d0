"""`ledger-reaper explain`: what one ledger is, whose, and what the service would do if asked to delete it.

It reads the ledger and its owner now, by the service's own rules, and needs no Spark.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow.dataset as ds
from rich.text import Text

from streaming.audit import columns as a
from streaming.audit.place import FINDINGS, Place, place_of
from streaming.audit.report.words import age_text, meaning_of, size_text
from streaming.audit.walk.referring import Referring, referring_to
from streaming.audit.walk.suspects import LedgerReader
from streaming.clients import clients_for
from streaming.clock import Clock, SystemClock
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.in_use.loader import InUseLoader
from streaming.ports import MetadataStore, Unreadable
from streaming.state import receipts
from streaming.sweep.buckets import offload_buckets
from streaming.sweep.jobs import Limiter
from streaming.sweep.offloaded import OffloadedCopies
from streaming.sweep.pace import Pace
from streaming.terminal import Terminal, cell, count_of, say, say_json
from udfs import columns as c
from udfs.audit import Unclaimed, claim_of
from udfs.judge import NOT_ASKED, Case, judge, refers_to
from udfs.paths import ledger_path, topic_of
from udfs.records import LedgerFacts, LedgerState, Outcome, PendingDelete, Reason, Reference, Verdict
from udfs.references import key_of

_AUDITED = (a.CLASS, c.LEDGER_TYPE, c.REASON, c.TOPIC_NAME, c.UUID, c.DETAIL)


@dataclass(frozen=True, slots=True)
class Explained:
    """All that is known of one ledger now. facts is None where the ledger does not exist."""

    ledger_id: int
    path: str
    facts: LedgerFacts | Unreadable | None
    claim: PendingDelete | Unclaimed | None
    reference: Reference | None
    verdict: Verdict
    now_ms: int
    referring: Referring | None = None  # who refers to a ledger that does not exist


def explain(settings: Settings, ledger_id: int, *, as_json: bool, reads_per_second: float) -> None:
    """Print what the ledger is. Raises UnavailableError, ConfigError."""
    store = clients_for(settings).store
    known = with_referring(look(settings, ledger_id, SystemClock()), store, Pace(reads_per_second))
    past = past_of(settings, ledger_id)
    audited = audited_as(place_of(settings, None), ledger_id)
    if as_json:
        say_json(as_fields(known) | {"receipts": past, "last_audit": audited})
    else:
        _print(known, past)
        for row in audited:
            said = " ".join(str(row[name]) for name in _AUDITED if row[name])
            say(f"  last audit   {said}")


def look(settings: Settings, ledger_id: int, clock: Clock) -> Explained:
    """Read the ledger, then its owner, and judge a request for it. Raises UnavailableError, ConfigError."""
    clients = clients_for(settings)
    root = settings.zookeeper.ledgers_root
    layout = read_layout(clients.store, root)
    (facts,) = LedgerReader(clients.store, layout, root, Pace(0)).facts([ledger_id])
    path = ledger_path(layout, root, ledger_id)
    if not isinstance(facts, LedgerFacts) or facts.metadata is None:
        gone = Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
        unread = Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, facts.detail if isinstance(facts, Unreadable) else "")
        return Explained(ledger_id, path, facts, None, None, gone if facts is None else unread, clock.now_ms())
    claim = claim_of(ledger_id, facts.metadata.custom_metadata)
    if isinstance(claim, Unclaimed):
        refused = Verdict(Outcome.DEAD_LETTER, claim.reason, claim.detail)
        return Explained(ledger_id, path, facts, claim, None, refused, clock.now_ms())
    loader = InUseLoader(clients.store, clients.broker if settings.safety.ask_broker else None, clock)
    key = key_of(claim)
    reference = loader.load([key])[key]
    now_ms = clock.now_ms()
    case, policy = Case(request=claim, ledger=facts, reference=reference), policy_of(settings)
    verdict = judge(case, policy, now_ms=now_ms)
    if verdict == NOT_ASKED:
        (unconfirmed,) = OffloadedCopies(loader, offload_buckets(settings, loader))([(claim, reference)])
        verdict = judge(replace(case, unconfirmed=unconfirmed), policy, now_ms=now_ms)
    return Explained(ledger_id, path, facts, claim, reference, verdict, now_ms)


def with_referring(known: Explained, store: MetadataStore, pace: Limiter) -> Explained:
    """Add who refers to the ledger, if it does not exist: then its data is missing. Raises UnavailableError.

    An owner drops a ledger from its list before the ledger goes, so that a name read after that means a loss, unless
    the ledger was created meanwhile.
    """
    if known.facts is not None:
        return known
    found = referring_to(store, known.ledger_id, pace)
    if found.owners and store.read_many([known.path])[0] is not None:
        return known
    return replace(known, referring=found)


def past_of(settings: Settings, ledger_id: int) -> list[dict[str, Any]]:
    """Return the receipts of requests for the ledger, oldest first. Raises UnavailableError."""
    fields = [c.AT_MS, c.LEDGER_TYPE, c.OUTCOME, c.REASON, c.DETAIL]
    found = receipts.rows(settings.state_dir, ds.field(c.LEDGER_ID) == ledger_id, columns=fields)
    return sorted(found, key=lambda row: int(row[c.AT_MS]))


def audited_as(place: Place, ledger_id: int) -> list[dict[str, Any]]:
    """Return what the last audit found of the ledger and its offloaded objects.

    A ledger that was lost says nothing any more; the audit knows which topic it belonged to.
    """
    if not place.has(FINDINGS):
        return []
    files = ds.dataset(f"{place.root}/{FINDINGS}", filesystem=place.filesystem, format="parquet")
    found: list[dict[str, Any]] = files.to_table(
        columns=list(_AUDITED), filter=ds.field(c.LEDGER_ID) == ledger_id
    ).to_pylist()
    return found


def as_fields(known: Explained) -> dict[str, Any]:
    """Return the fields that --json prints."""
    fields: dict[str, Any] = {
        c.LEDGER_ID: known.ledger_id,
        "path": known.path,
        "exists": known.facts is not None,
    }
    if isinstance(known.facts, LedgerFacts):
        fields |= _ledger_fields(known.facts, known.now_ms)
    if isinstance(known.claim, PendingDelete):
        fields |= {
            c.COMPONENT: str(known.claim.component),
            c.TOPIC_NAME: topic_of(known.claim.managed_ledger),
            "cursor": known.claim.cursor_name,
            "schema_id": known.claim.schema_id,
        }
    if known.reference is not None:
        fields["owner"] = {
            "key": known.reference.key,
            "presence": str(known.reference.presence),
            "refers_to_it": refers_to(known.reference, known.ledger_id),
            "ledgers_in_use": len(known.reference.in_use),
            "newest_ledger": known.reference.newest_id,
            "read_from": [{"path": path, "version": version} for path, version in known.reference.checks],
            "detail": known.reference.detail,
        }
    if known.referring is not None:
        fields["referred_to_by"] = [
            {c.COMPONENT: component, c.TOPIC_NAME: topic_of(owner)} for component, owner in known.referring.owners
        ]
        fields["not_read"] = known.referring.unreadable
    verdict = known.verdict
    said = {c.OUTCOME: str(verdict.outcome), c.REASON: str(verdict.reason), c.DETAIL: verdict.detail}
    return fields | {"request": said | {"meaning": meaning_of(verdict.reason)}}


def _ledger_fields(facts: LedgerFacts, now_ms: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "version": facts.version,
        "last_change_ms": facts.last_change_ms,
        "age_seconds": (now_ms - facts.last_change_ms) // 1000,
    }
    if facts.metadata is not None:
        fields |= {
            "state": str(facts.metadata.state),
            c.BYTES: facts.metadata.length_bytes,
            "entries": facts.metadata.last_entry_id + 1,
            "custom_metadata": {
                key: value.decode("utf-8", "backslashreplace") for key, value in facts.metadata.custom_metadata.items()
            },
        }
    return fields


def _print(known: Explained, past: list[dict[str, Any]]) -> None:
    console = Terminal(soft_wrap=True)
    fields = as_fields(known)
    console.print(Text.assemble((f"Ledger {known.ledger_id}", "bold"), cell(f"  {known.path}")))
    if known.facts is None:
        console.print("  This ledger does not exist (any more).")
    for line in _missing(known):
        console.print(cell(f"  {line}"))
    for label, text in _lines(fields):
        console.print(cell(f"  {label:<12} {text}"))
    colour = {Outcome.DELETED: "yellow", Outcome.RETRY: "green", Outcome.ALREADY_GONE: "dim"}.get(
        known.verdict.outcome, "magenta"
    )
    answer = (f"{known.verdict.outcome} {known.verdict.reason}", f"bold {colour}")
    console.print(Text.assemble("\nThe service's answer to a request to delete it now: ", answer))
    console.print(meaning_of(known.verdict.reason))
    if known.verdict.detail:
        console.print(cell(f"({known.verdict.detail})"), style="dim")
    for row in past:
        at = datetime.fromtimestamp(row[c.AT_MS] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        console.print(cell(f"  receipt {at}  {row[c.OUTCOME]} {row[c.REASON]} {row[c.DETAIL] or ''}"))


def _missing(known: Explained) -> list[str]:
    if known.referring is None:
        return []
    lines = [
        f"MISSING: {topic_of(owner)} refers to it ({component}), so data is lost"
        for component, owner in known.referring.owners
    ]
    if lines:
        lines.append(
            f"`ledger-reaper undo --ledger {known.ledger_id}` helps if a receipt shows that the service deleted it"
        )
    if unread := known.referring.unreadable:
        lines.append(f"{count_of(len(unread), 'path')} could not be read and may refer to it, as {unread[0]}")
    return lines or ["no topic, cursor or schema in ZooKeeper refers to it"]


def _lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if "state" in fields:
        is_closed = fields["state"] == LedgerState.CLOSED
        holds = (
            f"{size_text(fields[c.BYTES])}, {count_of(fields['entries'], 'entry', 'entries')}"
            if is_closed
            else "its length is not known yet"
        )
        lines.append(("state", f"{fields['state']}, {holds}, last changed {age_text(fields['age_seconds'])} ago"))
    if c.TOPIC_NAME in fields:
        more = fields["cursor"] or fields["schema_id"]
        lines.append(("belongs to", fields[c.TOPIC_NAME] + (f" ({more})" if more else "")))
        lines.append(("component", fields[c.COMPONENT]))
    if "owner" in fields:
        owner = fields["owner"]
        refers = "refers to it" if owner["refers_to_it"] else "does not refer to it"
        newest = owner["newest_ledger"]
        names = f"{count_of(owner['ledgers_in_use'], 'ledger')} in use, newest {'none' if newest < 0 else newest}"
        text = {"PRESENT": f"exists and {refers} ({names})", "GONE": "does not exist"}
        lines.append(("owner", text.get(owner["presence"], "could not be read, so the ledger counts as in use")))
        lines += [("read from", f"{read['path']} version {read['version']}") for read in owner["read_from"]]
    return lines
