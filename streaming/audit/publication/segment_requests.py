"""Turns the ledgers of orphan segments into findings that are requested: one for each segment."""

from streaming.audit import audit_columns as a
from streaming.audit.findings import is_class
from streaming.audit.tables import Rows
from streaming.config.settings import Settings
from udfs import columns as c
from udfs.records import WHOLE_SEGMENT, LedgerComponent, LedgerType, Reason
from udfs.verdicts.finding_classes import FindingClass

# The request names the newest data ledger, which retention trims last.
_NEWEST = f"row_number() OVER (PARTITION BY {a.MANAGED_LEDGER} ORDER BY {c.LEDGER_ID} DESC)"
_LEDGERS = f"""
    SELECT * REPLACE (sum({c.BYTES}) OVER (PARTITION BY {a.MANAGED_LEDGER})::BIGINT AS {c.BYTES}) FROM rows
    WHERE {is_class(FindingClass.ORPHAN_SEGMENT)} AND {c.REASON} = $reason
"""
_ONE_EACH = f"""
    SELECT * REPLACE (
        $component::VARCHAR AS {c.COMPONENT}, $ledger_type::VARCHAR AS {c.LEDGER_TYPE}, $part::VARCHAR AS {c.UUID},
        'data:' || {a.MANAGED_LEDGER} AS {c.REFERENCE_KEY}
    )
    FROM rows WHERE {c.COMPONENT} = $data QUALIFY {_NEWEST} = 1
"""


def removes_segments(settings: Settings) -> bool:
    """Whether the operator allows the service to have segments deleted."""
    return LedgerComponent.SEGMENT in settings.safety.allowed_components


def requestable(findings: Rows, settings: Settings) -> Rows:
    """Return the findings to request: the orphans and, if the operator allows it, one for each orphan segment."""
    orphans = findings.where(is_class(FindingClass.ORPHAN))
    if not removes_segments(settings):
        return orphans
    ledgers = findings.select(_LEDGERS, reason=str(Reason.SEGMENT_UNNAMED))
    segments = ledgers.select(
        _ONE_EACH,
        component=str(LedgerComponent.SEGMENT),
        ledger_type=str(LedgerType.SEGMENT),
        part=WHOLE_SEGMENT,
        data=str(LedgerComponent.MANAGED_LEDGER),
    )
    return orphans.and_also(segments)
