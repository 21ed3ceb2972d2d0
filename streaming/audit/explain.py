"""`ledger-reaper explain`: shows one ledger, its owner, and what the service would do with a request to delete it.

The command reads the ledger and its owner now, and applies the service's own rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.dataset as ds
from rich.text import Text

from streaming.audit import audit_columns as a
from streaming.audit.output import FINDINGS, Output, output_of
from streaming.audit.report.descriptions import meaning_of
from streaming.audit.walk.referring import Referring, referring_to
from streaming.audit.walk.suspects import LedgerReader
from streaming.clients import clients_for
from streaming.clock import Clock, SystemClock, utc_text
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.in_use.loader import InUseLoader
from streaming.ports import MetadataStore, Unreadable
from streaming.state import receipts
from streaming.sweep.jobs import Limiter
from streaming.sweep.pace import Pace
from streaming.sweep.tiered_storage.buckets import offload_buckets
from streaming.sweep.tiered_storage.offloaded import OffloadedCopies
from streaming.terminal import Terminal, age_text, cell, count_of, say, size_text
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.paths import ledger_path, topic_of
from udfs.records import LedgerFacts, LedgerState, Outcome, PendingDelete, Reason, Reference, Verdict
from udfs.verdicts.finding_classes import Unclaimed, claim_of
from udfs.verdicts.judge import NOT_ASKED, Case, judge, refers_to

_AUDITED = (a.CLASS, c.LEDGER_TYPE, c.REASON, c.TOPIC_NAME, c.UUID, c.DETAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The facts about one ledger, as they were just read, and the verdict on a request to delete it."""

    ledger_id: int
    path: str
    facts: LedgerFacts | Unreadable | None  # None: the ledger does not exist
    claim: PendingDelete | Unclaimed | None
    reference: Reference | None
    verdict: Verdict
    now_ms: int
    referring: Referring | None = None  # the owners that refer to a ledger that does not exist


def read_explained(settings: Settings, ledger_id: int, *, reads_per_second: float) -> Explained:
    """Read the facts about the ledger. Raises UnavailableError, ConfigError."""
    store = clients_for(settings).store
    return with_referring(judged(settings, ledger_id, SystemClock()), store, Pace(reads_per_second))


def show_explained(settings: Settings, explained: Explained, lines: Sequence[str]) -> None:
    """Print the facts about a ledger on the terminal. Raises UnavailableError.

    Args:
        settings: the configuration.
        explained: the facts.
        lines: further lines to print, about the topic that needs the ledger.
    """
    _print(explained, past_of(settings, explained.ledger_id), lines)
    for row in audited_as(output_of(settings, None), explained.ledger_id):
        finding = " ".join(str(row[name]) for name in _AUDITED if row[name])
        say(f"  last audit   {finding}")


def explained_fields(settings: Settings, explained: Explained) -> dict[str, Any]:
    """Return what --json prints, with receipts and the last audit's findings. Raises UnavailableError."""
    past = past_of(settings, explained.ledger_id)
    return as_fields(explained) | {
        "receipts": past,
        "last_audit": audited_as(output_of(settings, None), explained.ledger_id),
    }


def owners_of(explained: Explained) -> list[tuple[str, str]]:
    """Return (component, managed ledger) of each owner that refers to the ledger now."""
    if explained.referring is not None:
        return explained.referring.owners
    claim, reference = explained.claim, explained.reference
    if isinstance(claim, PendingDelete) and reference is not None and refers_to(reference, explained.ledger_id):
        return [(str(claim.component), claim.managed_ledger)]
    return []


def judged(settings: Settings, ledger_id: int, clock: Clock) -> Explained:
    """Read the ledger, then its owner, and judge a request to delete it. Raises UnavailableError, ConfigError."""
    clients = clients_for(settings)
    root = settings.zookeeper.ledgers_root
    layout = read_layout(clients.store, root)
    (facts,) = LedgerReader(clients.store, layout, root, Pace(0)).facts([ledger_id])
    path = ledger_path(layout, root, ledger_id)
    if not isinstance(facts, LedgerFacts) or facts.metadata is None:
        gone = Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
        unread = Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, facts.detail if isinstance(facts, Unreadable) else "")
        return Explained(
            ledger_id=ledger_id,
            path=path,
            facts=facts,
            claim=None,
            reference=None,
            verdict=gone if facts is None else unread,
            now_ms=clock.now_ms(),
        )
    claim = claim_of(ledger_id, facts.metadata.custom_metadata)
    if isinstance(claim, Unclaimed):
        refused = Verdict(Outcome.DEAD_LETTER, claim.reason, claim.detail)
        return Explained(
            ledger_id=ledger_id,
            path=path,
            facts=facts,
            claim=claim,
            reference=None,
            verdict=refused,
            now_ms=clock.now_ms(),
        )
    loader = InUseLoader(clients.store, clients.broker if settings.safety.ask_broker else None, clock)
    key = key_of(claim)
    # the owner is read after the ledger, as in the service
    reference = loader.load([key])[key]
    now_ms = clock.now_ms()
    case, policy = Case(request=claim, ledger=facts, reference=reference), policy_of(settings)
    verdict = judge(case, policy, now_ms=now_ms)
    if verdict == NOT_ASKED:
        (unconfirmed,) = OffloadedCopies(loader, offload_buckets(settings, loader))([(claim, reference)])
        verdict = judge(replace(case, unconfirmed=unconfirmed), policy, now_ms=now_ms)
    return Explained(
        ledger_id=ledger_id, path=path, facts=facts, claim=claim, reference=reference, verdict=verdict, now_ms=now_ms
    )


def with_referring(explained: Explained, store: MetadataStore, pace: Limiter) -> Explained:
    """If the ledger does not exist, add the owners that refer to it: their data is missing. Raises UnavailableError."""
    if explained.facts is not None:
        return explained
    # A broker removes a ledger from its owner's list before it deletes the ledger. So if an owner still refers to a
    # ledger that was not found a moment ago, data is lost, unless the ledger was created in between.
    referring = referring_to(store, explained.ledger_id, pace)
    if referring.owners and store.read_many([explained.path])[0] is not None:
        return explained
    return replace(explained, referring=referring)


def past_of(settings: Settings, ledger_id: int) -> list[dict[str, Any]]:
    """Return the receipts of requests for the ledger, oldest first. Raises UnavailableError."""
    fields = [c.AT_MS, c.LEDGER_TYPE, c.OUTCOME, c.REASON, c.DETAIL]
    answers = receipts.rows(settings.state_dir, ds.field(c.LEDGER_ID) == ledger_id, columns=fields)
    return sorted(answers, key=lambda row: int(row[c.AT_MS]))


def audited_as(output: Output, ledger_id: int) -> list[dict[str, Any]]:
    """Return the last audit's findings about the ledger and its offloaded objects.

    The metadata of a lost ledger is gone, but the audit knows which topic it belonged to.
    """
    if not output.has(FINDINGS):
        return []
    files = ds.dataset(f"{output.root}/{FINDINGS}", filesystem=output.filesystem, format="parquet")
    findings: list[dict[str, Any]] = files.to_table(
        columns=list(_AUDITED), filter=ds.field(c.LEDGER_ID) == ledger_id
    ).to_pylist()
    return findings


def as_fields(explained: Explained) -> dict[str, Any]:
    """Return the fields that --json prints."""
    fields: dict[str, Any] = {
        c.LEDGER_ID: explained.ledger_id,
        "path": explained.path,
        "exists": explained.facts is not None,
    }
    if isinstance(explained.facts, LedgerFacts):
        fields |= _ledger_fields(explained.facts, explained.now_ms)
    if isinstance(explained.claim, PendingDelete):
        fields |= {
            c.COMPONENT: str(explained.claim.component),
            c.TOPIC_NAME: topic_of(explained.claim.managed_ledger),
            "cursor": explained.claim.cursor_name,
            "schema_id": explained.claim.schema_id,
        }
    if explained.reference is not None:
        fields["owner"] = {
            "key": explained.reference.key,
            "presence": str(explained.reference.presence),
            "refers_to_it": refers_to(explained.reference, explained.ledger_id),
            "ledgers_in_use": len(explained.reference.in_use),
            "newest_ledger": explained.reference.newest_id,
            "read_from": [{"path": path, "version": version} for path, version in explained.reference.checks],
            "detail": explained.reference.detail,
        }
    if explained.referring is not None:
        fields["referred_to_by"] = [
            {c.COMPONENT: component, c.TOPIC_NAME: topic_of(owner)} for component, owner in explained.referring.owners
        ]
        fields["not_read"] = explained.referring.unreadable
    verdict = explained.verdict
    answer = {c.OUTCOME: str(verdict.outcome), c.REASON: str(verdict.reason), c.DETAIL: verdict.detail}
    return fields | {"request": answer | {"meaning": meaning_of(verdict.reason)}}


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


def _print(explained: Explained, past: list[dict[str, Any]], lines: Sequence[str]) -> None:
    console = Terminal(soft_wrap=True)
    fields = as_fields(explained)
    console.print(Text.assemble((f"Ledger {explained.ledger_id}", "bold"), cell(f"  {explained.path}")))
    if explained.facts is None:
        console.print("  This ledger does not exist (any more).")
    for line in _missing(explained):
        console.print(cell(f"  {line}"))
    for label, text in _lines(fields):
        console.print(cell(f"  {label:<12} {text}"))
    for line in lines:
        console.print(cell(line))
    colour = {Outcome.DELETED: "yellow", Outcome.RETRY: "green", Outcome.ALREADY_GONE: "dim"}.get(
        explained.verdict.outcome, "magenta"
    )
    answer = (f"{explained.verdict.outcome} {explained.verdict.reason}", f"bold {colour}")
    console.print(Text.assemble("\nThe service's answer to a request to delete it now: ", answer))
    console.print(meaning_of(explained.verdict.reason))
    if explained.verdict.detail:
        console.print(cell(f"({explained.verdict.detail})"), style="dim")
    for row in past:
        receipt = f"  receipt {utc_text(row[c.AT_MS])}  {row[c.OUTCOME]} {row[c.REASON]} {row[c.DETAIL] or ''}"
        console.print(cell(receipt.rstrip()))


def _missing(explained: Explained) -> list[str]:
    if explained.referring is None:
        return []
    lines = [
        f"MISSING: {topic_of(owner)} refers to it ({component}), so data is lost"
        for component, owner in explained.referring.owners
    ]
    if unread := explained.referring.unreadable:
        lines.append(f"{count_of(len(unread), 'path')} could not be read and may refer to it, for example {unread[0]}")
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
