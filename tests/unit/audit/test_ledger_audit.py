"""The name of an audit."""

from streaming.audit.ledger_audit import audit_id_at


def test_names_of_audits_sort_by_time() -> None:
    assert audit_id_at(1_700_000_000_007) == "20231114T221320007Z"
    assert sorted(map(audit_id_at, (1_700_000_000_100, 1_700_000_000_020))) == [
        "20231114T221320020Z",
        "20231114T221320100Z",
    ]
