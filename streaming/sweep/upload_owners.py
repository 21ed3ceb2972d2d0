"""Whose an unfinished upload is: its parts carry no metadata, so BookKeeper is asked about the ledger in their name."""

from collections.abc import Sequence
from dataclasses import replace

from streaming.in_use.loader import InUseLoader
from streaming.ports import Unreadable, Znode
from streaming.sweep.offload_jobs import OffloadJob, OffloadRules
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.paths import ledger_path
from udfs.records import LedgerMetadata


def ask_bookkeeper(loader: InUseLoader, rules: OffloadRules, jobs: Sequence[OffloadJob]) -> None:
    """Write into each job of which parts are all that is stored what BookKeeper says of its ledger.

    The ledger is the request's: we asked the bucket for parts of `<uuid>-ledger-<id>` by this very name. Raises
    UnavailableError.
    """
    asked = [one for one in jobs if one.facts.are_parts_only]
    paths = [ledger_path(rules.layout, rules.ledgers_root, one.job.request.ledger_id) for one in asked]
    for one, node in zip(asked, loader.ledgers(paths) if paths else [], strict=True):
        ledger, unread = _said(node)
        one.objects = replace(one.facts, ledger=ledger, ledger_unread=unread)


def _said(node: Znode | Unreadable | None) -> tuple[LedgerMetadata | None, str]:
    """Return the ledger's metadata (None: BookKeeper has no such ledger), and why they are not known."""
    if node is None:
        return None, ""
    if isinstance(node, Unreadable):
        return None, f"its ledger can't be read: {node.detail}"
    try:
        return parse_ledger_metadata(node.data), ""
    except FormatError as error:
        return None, f"its ledger can't be parsed: {error}"
