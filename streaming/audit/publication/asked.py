"""The orphans of each publication, in asked/, which are written before any request is sent.

An interrupted publication resumes from these rows. Repeated audits leave out the orphans in them.
"""

from collections.abc import Collection, Iterator

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.output import Output
from streaming.audit.tables import Rows, Tables
from streaming.config.sections import TopicSettings
from udfs import columns as c

REQUEST_TOPIC = "request_topic"
_TOPIC = pa.field(REQUEST_TOPIC, pa.string())
_FOLDER = "asked"
_PUBLICATION = "publication"


def keep(output: Output, publication: str, orphans: Rows, topics: TopicSettings) -> None:
    """Write the orphans of a publication, each with its request topic; a second call replaces the rows.

    Raises UnavailableError.
    """
    with orphans.reader() as reader:
        schema = reader.schema.append(_TOPIC)

    def targeted() -> Iterator[pa.RecordBatch]:
        for batch in orphans.batches():
            owners = batch.column(a.MANAGED_LEDGER).to_pylist()
            routes = [topics.route(owner) for owner in owners]
            yield batch.append_column(_TOPIC, pa.array(routes, _TOPIC.type))

    output.save(_folder(publication), orphans.tables.keep_batches(targeted(), schema))


def has(output: Output, publication: str) -> bool:
    """Whether the orphans of a publication are still kept. Raises UnavailableError."""
    return output.has(_folder(publication))


def rows(tables: Tables, output: Output, publication: str) -> Rows:
    """Read the orphans that keep wrote; REQUEST_TOPIC is "" if an earlier version of this program wrote them."""
    kept = output.load(tables, _folder(publication))
    with kept.reader() as reader:
        has_topic = REQUEST_TOPIC in reader.schema.names
    return kept if has_topic else kept.select(f"SELECT *, '' AS {REQUEST_TOPIC} FROM rows")


def without_asked(orphans: Rows, output: Output, publications: Collection[str]) -> Rows:
    """Select the orphans that none of these publications has requested. Raises UnavailableError."""
    asked = [rows(orphans.tables, output, name) for name in _kept(output) if name in publications]
    # an earlier request for an orphan may still wait or be a dead letter; further requests would only accumulate there
    return _without(orphans, asked[0].and_also(*asked[1:])) if asked else orphans


def forget(output: Output, findings: Rows) -> None:
    """Remove incomplete rows, and the rows of each publication if none of its orphans is found any more.

    Raises UnavailableError.
    """
    kept = _kept(output)
    for folder in output.folders(_FOLDER):
        name = folder.removeprefix(f"{_PUBLICATION}=")
        asked = rows(findings.tables, output, name) if name in kept else None
        # safe, because BookKeeper never assigns an id twice: the same orphan is not found again
        if asked is None or _without(asked, findings).count() == asked.count():
            output.remove(f"{_FOLDER}/{folder}")


def _without(some: Rows, others: Rows) -> Rows:
    is_same = f"rows.{c.LEDGER_ID} = others.{c.LEDGER_ID} AND rows.{c.UUID} IS NOT DISTINCT FROM others.{c.UUID}"
    return some.select(f"FROM rows ANTI JOIN others ON {is_same}", others=others)


def _kept(output: Output) -> list[str]:
    prefix = f"{_PUBLICATION}="
    names = [name.removeprefix(prefix) for name in output.folders(_FOLDER) if name.startswith(prefix)]
    return [name for name in names if output.has(_folder(name))]


def _folder(publication: str) -> str:
    return f"{_FOLDER}/{_PUBLICATION}={publication}"
