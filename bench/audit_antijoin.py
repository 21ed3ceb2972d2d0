"""Measures how long the audit takes to compare a listing of ledgers with the references to them, both ways.

    .venv/bin/python -m bench.audit_antijoin [--listed 11000000] [--referenced 10000000] [--runs 5]

It creates both sides once: the listing in the order of the folders, the references shuffled, 5 % of them without a
ledger. Each run is the audit's own comparison (streaming.audit.reference_join) in its own tables. After two warm-ups it
prints the median with its range, and the peak memory.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa

from bench.sampler import Sampler
from bench.session import command_line
from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.tables import Rows, Tables
from udfs import columns as c

WARM_UPS = 2
TOPICS = 100_000
NAMESPACES = 50
CHUNK = 100_000


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--listed", type=int, default=11_000_000)
    parser.add_argument("--referenced", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Sampler() as sampler:
        tables = Tables(Path(folder), Event())
        started_s = time.perf_counter()
        listed = tables.keep_batches(listing(options.listed), a.LISTED)
        references = tables.keep_batches(references_to(options.listed, options.referenced), a.REFERENCE)
        print(f"stored in {time.perf_counter() - started_s:.2f} s", flush=True)
        seconds = []
        for _ in range(WARM_UPS + options.runs):
            took_s, unreferenced, unlisted = compare(tables, listed, references)
            seconds.append(took_s)
            print(f"{took_s:.2f} s", flush=True)
        del seconds[:WARM_UPS]
        findings = {"unreferenced": unreferenced.count(), "unlisted": unlisted.count()}
        spilled = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        tables.close()
    result = {
        "listed": options.listed,
        "referenced": options.referenced,
        **findings,
        "seconds_median": round(statistics.median(seconds), 2),
        "seconds_range": [round(min(seconds), 2), round(max(seconds), 2)],
        "temporary_mb": spilled // 1_000_000,
        **sampler.peak_mb(),
    }
    print(json.dumps(result, indent=2))


def listing(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, CHUNK):
        ids = pa.array(np.arange(start, min(count, start + CHUNK)))
        nothing = pa.nulls(len(ids), pa.string())
        yield pa.RecordBatch.from_arrays([ids, nothing, nothing], schema=a.LISTED)


def references_to(listed: int, count: int) -> Iterator[pa.RecordBatch]:
    numbers = np.random.default_rng(1).permutation(count)
    for start in range(0, count, CHUNK):
        chunk = numbers[start : start + CHUNK]
        # every 20th reference names a ledger that was not listed
        ids = np.where(chunk % 20 == 0, chunk + listed, chunk)
        of_topics = [number % TOPICS for number in chunk.tolist()]
        spaces = [f"public/ns{number % NAMESPACES}" for number in of_topics]
        topics = [f"{space}/persistent/t{number}" for space, number in zip(spaces, of_topics, strict=True)]
        columns = {
            c.LEDGER_ID: ids,
            a.IN_BOOKKEEPER: [True] * len(chunk),
            c.BYTES: [1_000] * len(chunk),
            c.REFERENCE_KEY: [f"data:{topic}" for topic in topics],
            c.COMPONENT: ["MANAGED_LEDGER"] * len(chunk),
            a.MANAGED_LEDGER: topics,
            a.NAMESPACE: spaces,
        }
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(len(chunk), field.type)
            for field in a.REFERENCE
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=a.REFERENCE)


def compare(tables: Tables, listed: Rows, references: Rows) -> tuple[float, Rows, Rows]:
    """Return the seconds that it took, the ids that only the listing has, and the references without a ledger."""
    started_s = time.perf_counter()
    compared = tables.keep(reference_join.one_sided(listed, references))
    unreferenced = tables.keep(reference_join.unreferenced(compared))
    unlisted = tables.keep(reference_join.unlisted(references, compared))
    return time.perf_counter() - started_s, unreferenced, unlisted


if __name__ == "__main__":
    main()
