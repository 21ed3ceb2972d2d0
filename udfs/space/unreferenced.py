"""The cause of ledgers that no owner refers to. Only the audit, which asks twice, proves that a ledger is an orphan."""

from collections.abc import Callable, Iterator

import numpy as np

from udfs.paths import namespace_of, topic_of
from udfs.space.causes import Cause
from udfs.space.ledger_table import Kind, LedgerTable
from udfs.space.space_report import Share

_OF_AGE = (Cause.UNREFERENCED, Cause.UNREFERENCED_OPEN, Cause.TOO_YOUNG)
IsUnread = Callable[[str, Kind], bool]


def unreferenced_shares(
    table: LedgerTable, is_unread: IsUnread, is_wanted: Callable[[str], bool], *, now_ms: int, min_age_ms: int
) -> Iterator[Share]:
    """Yield the shares of the ledgers that nothing has claimed.

    Args:
        table: of all ledgers.
        is_unread: whether what refers to an owner's ledgers of this kind could not be read. The owner is
            tenant/ns/persistent/encoded.
        is_wanted: whether the report includes an owner's ledgers; "": ledgers that name none.
        now_ms: the time, in ms since 1970.
        min_age_ms: a ledger that changed less than this ago may not be named by its owner yet.
    """
    rows = np.flatnonzero(~table.claimed)
    is_young = now_ms - table.changed_ms[rows] < min_age_ms
    # an index into _OF_AGE; in `codes`, owner 0 is none
    age = np.where(~table.is_closed[rows], 1, np.where(is_young, 2, 0))
    codes = ((table.owner[rows] + 1) * len(Kind) + table.kind[rows]) * len(_OF_AGE) + age
    groups, group_of, counts = np.unique(codes, return_inverse=True, return_counts=True)
    rows = rows[np.argsort(group_of, kind="stable")]
    ends = np.cumsum(counts)
    stored = table.stored
    for code, start, end in zip(groups.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True):
        of_group = rows[start:end]
        rest, of_age = divmod(code, len(_OF_AGE))
        owner, kind = divmod(rest, len(Kind))
        name = table.owners[owner - 1] if owner else ""
        if not is_wanted(name):
            continue
        cause = _cause(name, Kind(kind), _OF_AGE[of_age], is_unread)
        yield Share(
            cause=cause,
            namespace=namespace_of(name) if name else "",
            topic=topic_of(name) if name else "",
            ledgers=len(of_group),
            one_copy=int(table.length[of_group].sum()),
            stored=int(stored[of_group].sum()),
            is_exact=bool(table.is_closed[of_group].all()),
        )


def _cause(owner: str, kind: Kind, of_age: Cause, is_unread: IsUnread) -> Cause:
    if kind is Kind.FOREIGN:
        return Cause.FOREIGN
    if kind is Kind.UNCLEAR or is_unread(owner, kind):
        return Cause.UNKNOWN
    return of_age
