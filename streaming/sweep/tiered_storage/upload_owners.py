"""Finds the owner of an unfinished upload: its parts have no metadata, so the ledger in their name is read."""

from collections.abc import Sequence
from dataclasses import replace

from streaming.in_use.loader import InUseLoader
from streaming.ports import Unreadable, Znode
from streaming.sweep.tiered_storage.offload_jobs import OffloadJob, OffloadRules
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.paths import ledger_path
from udfs.records import LedgerMetadata


def ask_bookkeeper(loader: InUseLoader, rules: OffloadRules, jobs: Sequence[OffloadJob]) -> None:
    """For each job that has only upload parts, read its ledger's metadata from BookKeeper, and set it in the job.

    The ledger is the request's: we asked the bucket for parts of `<uuid>-ledger-<id>` by this very name. Raises
    UnavailableError.
    """
    parts_only = [job for job in jobs if job.facts.are_parts_only]
    paths = [ledger_path(rules.layout, rules.ledgers_root, job.request.ledger_id) for job in parts_only]
    for job, node in zip(parts_only, loader.ledgers(paths) if paths else [], strict=True):
        ledger, unread = _metadata(node)
        job.objects = replace(job.facts, ledger=ledger, ledger_unread=unread)


def _metadata(node: Znode | Unreadable | None) -> tuple[LedgerMetadata | None, str]:
    """Return the ledger's metadata (None: BookKeeper has no such ledger), and why it is not known ("": it is)."""
    if node is None:
        return None, ""
    if isinstance(node, Unreadable):
        return None, f"its ledger can't be read: {node.detail}"
    try:
        return parse_ledger_metadata(node.data), ""
    except FormatError as error:
        return None, f"its ledger can't be parsed: {error}"
