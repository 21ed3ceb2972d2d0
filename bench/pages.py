"""Writes space.html of invented clusters with awkward names and sizes, and photographs them at two widths and themes.

    python -m bench.pages --out DIR

Run it after a change of streaming/pages, and view the pictures: no test sees whether texts overlap. It fails if a page
scrolls sideways.
"""

import argparse
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

from bench.browser import photograph, size_of
from streaming.space.output.page import page
from streaming.space.output.space_tables import Shown
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import growth, run_of
from udfs.space.space_report import BookieSpace, Share, SpaceReport, Subscription, TopicPolicy, Unknown
from udfs.space.view import Filters, View

_AT_MS = 1_795_700_000_000
_DAY_MS = 86_400_000
_ODD = "<b onclick=\"x\">'quoted' & \n\x1b[31m\u202eü" + "very-long-name-" * 12
_HELD = (Cause.BACKLOG, Cause.ACKNOWLEDGED_BEHIND_GAP, Cause.PARTLY_READ, Cause.BROKER_CURSOR)


def reports() -> dict[str, list[SpaceReport]]:
    """Return the runs of each cluster, oldest first."""
    day = _cluster(random.Random(1), tenants=6, topics=40)
    many = [
        replace(day, at_ms=_AT_MS - number * _DAY_MS // 4, shares=day.shares[: len(day.shares) - 3 * number])
        for number in range(40, -1, -1)
    ]
    return {
        "usual": many,
        "crowded": [_cluster(random.Random(2), tenants=300, topics=30, large_tenant=10_000)],
        "odd": [replace(_odd(), at_ms=_AT_MS - 1), _odd()],
        "empty": [SpaceReport(at_ms=_AT_MS, seconds=0.1, ledgers=0, topics=0, shares=())],
    }


def _cluster(chance: random.Random, *, tenants: int, topics: int, large_tenant: int = 0) -> SpaceReport:
    shares, subscriptions = [], []
    sizes = [topics] * tenants + ([large_tenant] if large_tenant else [])
    causes = [cause for cause in Cause if cause is not Cause.NOT_COLLECTED]
    for tenant, count in enumerate(sizes):
        for number in range(count):
            namespace = f"tenant-{tenant}/{('prod', 'staging', 'analytics-of-the-web-shop')[number % 3]}"
            topic = f"persistent://{namespace}/{('orders', 'clicks', 'payments-settled')[number % 3]}-{number}"
            cause = chance.choice(causes) if number % 4 else Cause.BACKLOG
            size = int(2 ** chance.uniform(0, 36) / (tenant + 1))
            subscription = f"worker-{number % 7}" if cause in _HELD else ""
            outside = cause in (Cause.TIERED, Cause.MISSING)
            shares.append(
                Share(
                    cause=cause,
                    namespace=namespace,
                    topic=topic,
                    subscription=subscription,
                    ledgers=1 + number % 9,
                    one_copy=size,
                    stored=0 if outside else 2 * size,
                    is_exact=bool(number % 5),
                )
            )
            if subscription:
                subscriptions.append(
                    Subscription(
                        topic=topic,
                        name=subscription,
                        backlog=size,
                        acknowledged=size // 3,
                        frees=size // 2 if number % 3 else None,
                        last_active_ms=_AT_MS - number * _DAY_MS if number % 4 else None,
                        is_connected=(True, False, None)[number % 3],
                    )
                )
    stored = sum(share.stored for share in shares)
    bookies = tuple(
        BookieSpace(
            bookie_id=f"bookie-{number}.bookkeeper.svc.cluster.local:3181",
            url=f"http://bookie-{number}:8000",
            ledgers=100,
            live=stored // 3,
            reported_live=stored // 3 - 10**6,
            reported_ledgers=120,
            entry_logs=40,
            disk_total=stored,
            disk_free=stored // 2,
            reclaimed=10**9,
            gc_wait_seconds=900,
            minor_threshold=0.2,
            major_threshold=0.5,
            last_major_ms=_AT_MS - _DAY_MS,
        )
        for number in range(3)
    )
    return SpaceReport(
        at_ms=_AT_MS,
        seconds=3.2,
        cluster="east",
        ledgers=sum(share.ledgers for share in shares),
        topics=sum(sizes),
        shares=tuple(shares),
        subscriptions=tuple(subscriptions),
        bookies=bookies,
        policies={
            share.topic: TopicPolicy(retention_minutes=1440, retention_megabytes=-1, level="namespace", is_loaded=True)
            for share in shares
            if share.cause is Cause.RETENTION
        },
    )


def _odd() -> SpaceReport:
    """Return a report with markup, control characters, very long names, nothing known, and no bytes in some causes."""
    sizes = {cause: 0 if number % 3 == 0 else 7**number for number, cause in enumerate(Cause)}
    shares = tuple(
        Share(
            cause=cause,
            namespace=f"{_ODD}/{_ODD}",
            topic=f"persistent://{_ODD}/{_ODD}/{_ODD}{number}",
            subscription=_ODD if cause in _HELD else "",
            ledgers=1,
            one_copy=sizes[cause],
            stored=0 if cause in (Cause.TIERED, Cause.MISSING) else sizes[cause] * 3,
            is_exact=False,
        )
        for number, cause in enumerate(Cause)
        if cause is not Cause.NOT_COLLECTED
    )
    unknown = [Unknown(what=f"/managed-ledgers/{_ODD}/{number}", detail=_ODD * 2) for number in range(300)]
    return SpaceReport(
        at_ms=_AT_MS,
        seconds=3.2,
        cluster=_ODD,
        ledgers=24,
        topics=22,
        shares=shares,
        subscriptions=(Subscription(topic=f"persistent://{_ODD}", name=_ODD, backlog=10**15, frees=None),),
        bookies=(BookieSpace(bookie_id=_ODD, ledgers=3, live=0, is_registered=False, faults=(_ODD,)),),
        unknown=tuple(unknown),
    )


def _write(folder: Path, name: str, runs: list[SpaceReport]) -> None:
    past = [run_of(run) for run in runs]
    shown = Shown(report=runs[-1], filters=Filters(), by=View.CAUSE, growth=growth(past[:-1], past[-1]))
    file = folder / f"{name}.html"
    file.write_text(page(shown, past))
    for width, theme in product((400, 1200), ("light", "dark")):
        wide, high = size_of(file, width)
        photograph(file, folder / f"{name}-{width}-{theme}.png", width=width, height=min(high, 12_000), theme=theme)
        print(f"{name} {width} px {theme}: {high} px high, {file.stat().st_size / 1000:.0f} kB")
        if wide > width:
            raise SystemExit(f"{name} is {wide} px wide on a screen of {width} px")


def main() -> None:
    """Write and photograph all pages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, runs in reports().items():
        _write(folder, name, runs)


if __name__ == "__main__":
    main()
