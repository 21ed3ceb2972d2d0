"""The result of `space --json`: one document, described in docs/json.md."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from streaming.space.output.fixes import Fix, fixes
from streaming.space.output.space_tables import Shown
from streaming.space.output.space_texts import CAUSE_TEXT, Price
from udfs.space.space_report import BookieSpace, Subscription
from udfs.space.view import Amount, Row, View, disks_of, largest_subscriptions, rows_by, total

VERSION = 1


def document(shown: Shown) -> dict[str, Any]:
    """Return the whole result. Its rows are those of --by, at most --top; its totals are those of all rows."""
    report, price = shown.report, shown.price
    rows = _rows(shown)
    return {
        "version": VERSION,
        "at_ms": report.at_ms,
        "seconds": round(report.seconds, 3),
        "cluster": report.cluster,
        "zookeeper": report.zookeeper,
        "complete": report.is_complete,
        "filters": asdict(shown.filters),
        "ledgers": report.ledgers,
        "topics": report.topics,
        "totals": _amount(total(report.shares), price),
        "currency": price.currency,
        "causes": [_row(row, View.CAUSE, price) for row in rows_by(View.CAUSE, report.shares)],
        "by": str(shown.by),
        "rows": rows[: shown.top],
        "rows_left_out": len(rows) - len(rows[: shown.top]),
        "disks": asdict(disks_of(report.bookies)),
        "bookies": [_bookie(bookie) for bookie in report.bookies],
        "fixes": [_fix(fix) for fix in fixes(report)],
        "growth": None
        if shown.growth is None
        else {
            "since_ms": shown.growth.since_ms,
            "causes": [
                {"cause": str(cause), "stored_then": then, "stored_now": now} for cause, then, now in shown.growth.rows
            ],
        },
        "unknown": [asdict(each) for each in report.unknown],
    }


def _rows(shown: Shown) -> Sequence[Mapping[str, Any]]:
    report = shown.report
    if shown.by is View.BOOKIE:
        return [_bookie(bookie) for bookie in report.bookies]
    if shown.by is View.SUBSCRIPTION:
        held = defaultdict[tuple[str, str], int](int)
        for share in report.shares:
            held[share.topic, share.subscription] += share.stored
        return [
            _subscription(each, held[each.topic, each.name]) for each in largest_subscriptions(report.subscriptions)
        ]
    return [_row(row, shown.by, shown.price) for row in rows_by(shown.by, report.shares)]


def _amount(amount: Amount, price: Price) -> dict[str, Any]:
    return {
        "ledgers": amount.ledgers,
        "one_copy": amount.one_copy,
        "one_copy_in_bookkeeper": amount.in_bookkeeper,
        "one_copy_tiered": amount.tiered,
        "one_copy_missing": amount.missing,
        "stored": amount.stored,
        "exact": amount.is_exact,
        "price_per_month": round(price.of(amount), 4) if price.is_known else None,
    }


def _row(row: Row, view: View, price: Price) -> dict[str, Any]:
    named = {str(view): row.name}
    if view is View.CAUSE:
        named["meaning"] = CAUSE_TEXT[row.largest_cause]
    causes = {} if view is View.CAUSE else {"stored_by_cause": {str(cause): n for cause, n in row.causes.items()}}
    return {**named, **_amount(row.amount, price), **causes}


def _subscription(subscription: Subscription, stored_as_slowest: int) -> dict[str, Any]:
    return {
        "topic": subscription.topic,
        "subscription": subscription.name,
        "of_broker": subscription.is_of_broker,
        "backlog": subscription.backlog,
        "acknowledged": subscription.acknowledged,
        "frees": subscription.frees,
        "stored_as_slowest": stored_as_slowest,
        "last_active_ms": subscription.last_active_ms,
        "connected": subscription.is_connected,
        "exact": subscription.is_exact,
    }


def _bookie(bookie: BookieSpace) -> dict[str, Any]:
    fields = asdict(bookie)
    fields["bookie"] = fields.pop("bookie_id")
    fields["registered"] = fields.pop("is_registered")
    fields["read_only"] = fields.pop("is_read_only")
    fields["collecting"] = fields.pop("is_collecting")
    return {**fields, "uncollected_ledgers": bookie.uncollected_ledgers}


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "cause": str(fix.cause),
        "text": fix.text,
        "commands": list(fix.commands),
        "frees_stored": fix.frees,
        "frees_one_copy": fix.frees_one_copy,
    }
