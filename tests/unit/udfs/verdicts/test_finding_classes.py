"""The owner that a ledger's metadata names, and the findings that verdicts become."""

from collections.abc import Mapping

import pytest

from tests.builders import (
    CURSOR,
    SCHEMA,
    TOPIC,
    UUID,
    bucket_custom,
    bucket_request,
    compacted_custom,
    compacted_request,
    cursor_custom,
    cursor_request,
    data_custom,
    data_request,
    schema_custom,
    schema_request,
)
from udfs.owners.named_owner import mismatch
from udfs.records import LedgerType, Outcome, PendingDelete, Reason, Verdict
from udfs.verdicts.finding_classes import (
    NOT_FINDINGS,
    FindingClass,
    SuspectCheck,
    Unclaimed,
    affected_by,
    check_of_missing,
    check_of_verdict,
    claim_of,
    claim_of_objects,
    concluded,
    owner_paths,
)


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        pytest.param(data_custom(), data_request(), id="data ledger"),
        pytest.param(cursor_custom(), cursor_request(), id="cursor ledger: its component is managed-ledger"),
        pytest.param(schema_custom(), schema_request(), id="schema ledger"),
        pytest.param(compacted_custom(), compacted_request(), id="compacted ledger"),
        pytest.param(
            compacted_custom() | {"component": b"compacted-topic"}, compacted_request(), id="component as documented"
        ),
        pytest.param(bucket_custom(), bucket_request(), id="delayed-delivery bucket"),
    ],
)
def test_a_ledger_claims_the_owner_that_its_own_metadata_names(
    custom: Mapping[str, bytes], expected: PendingDelete
) -> None:
    assert claim_of(5, custom) == expected


@pytest.mark.parametrize(
    "custom",
    [data_custom(), cursor_custom(), schema_custom(), compacted_custom(), bucket_custom()],
    ids=["data", "cursor", "schema", "compacted", "bucket"],
)
def test_the_judge_never_finds_another_owner_than_the_claimed_owner(custom: Mapping[str, bytes]) -> None:
    claim = claim_of(5, custom)

    assert isinstance(claim, PendingDelete)
    assert mismatch(claim, custom) is None


@pytest.mark.parametrize(
    ("custom", "expected", "reason"),
    [
        pytest.param({}, FindingClass.FOREIGN, Reason.NOT_PULSARS, id="no metadata at all"),
        pytest.param({"application": b"kafka"}, FindingClass.FOREIGN, Reason.NOT_PULSARS, id="another application"),
        pytest.param(
            data_custom() | {"component": b"functions"},
            FindingClass.UNKNOWN,
            Reason.UNKNOWN_COMPONENT,
            id="a component of a newer Pulsar",
        ),
        pytest.param(
            {"application": b"pulsar", "component": b"managed-ledger"},
            FindingClass.UNKNOWN,
            Reason.MISSING_FIELD,
            id="no owner named",
        ),
        pytest.param(data_custom("no topic"), FindingClass.UNKNOWN, Reason.BAD_TOPIC_NAME, id="no topic's name"),
        pytest.param(
            data_custom() | {"pulsar/managed-ledger": b"\xff"},
            FindingClass.UNKNOWN,
            Reason.BAD_TOPIC_NAME,
            id="name is not UTF-8",
        ),
        pytest.param(
            cursor_custom(cursor="a/b"), FindingClass.UNKNOWN, Reason.BAD_TOPIC_NAME, id="cursor name is a path"
        ),
        pytest.param(schema_custom("a/b"), FindingClass.UNKNOWN, Reason.BAD_TOPIC_NAME, id="no schema id"),
    ],
)
def test_a_ledger_that_names_no_owner_is_never_an_orphan(
    custom: Mapping[str, bytes], expected: FindingClass, reason: Reason
) -> None:
    claim = claim_of(5, custom)

    assert isinstance(claim, Unclaimed)
    assert (claim.finding_class, claim.reason) == (expected, reason)


@pytest.mark.parametrize(
    ("verdict", "expected", "is_candidate"),
    [
        (Verdict(Outcome.DELETED, Reason.UNREFERENCED), FindingClass.ORPHAN, True),
        (Verdict(Outcome.DELETED, Reason.OWNER_GONE), FindingClass.ORPHAN, True),
        (Verdict(Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), FindingClass.ORPHAN, True),
        (Verdict(Outcome.RETRY, Reason.UNREFERENCED_ONCE), FindingClass.ORPHAN, True),
        (Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND), FindingClass.GONE, False),
        (Verdict(Outcome.RETRY, Reason.IN_USE), FindingClass.IN_USE, False),
        (Verdict(Outcome.RETRY, Reason.NOT_CLOSED), FindingClass.OPEN, False),
        (Verdict(Outcome.RETRY, Reason.TOO_YOUNG), FindingClass.TOO_YOUNG, False),
        (Verdict(Outcome.RETRY, Reason.ABOVE_NEWEST), FindingClass.TOO_YOUNG, False),
        (Verdict(Outcome.RETRY, Reason.OWNER_UNREADABLE), FindingClass.UNKNOWN, False),
        (Verdict(Outcome.RETRY, Reason.BROKER_UNAVAILABLE), FindingClass.UNKNOWN, False),
        (Verdict(Outcome.RETRY, Reason.PROOF_MISSING), FindingClass.UNKNOWN, False),
        (Verdict(Outcome.DEAD_LETTER, Reason.OTHER_OWNER), FindingClass.UNKNOWN, False),
        (Verdict(Outcome.DEAD_LETTER, Reason.OTHER_CLUSTER), FindingClass.FOREIGN, False),
    ],
    ids=lambda value: str(getattr(value, "reason", value)),
)
def test_a_verdict_becomes_a_class(verdict: Verdict, expected: FindingClass, is_candidate: bool) -> None:
    look = check_of_verdict(verdict)

    assert (look.finding_class, look.is_candidate) == (expected, is_candidate)


@pytest.mark.parametrize("reason", Reason)
def test_no_reason_to_keep_becomes_an_orphan(reason: Reason) -> None:
    kept = concluded(check_of_verdict(Verdict(Outcome.RETRY, reason)))

    assert kept.finding_class is not FindingClass.ORPHAN


@pytest.mark.parametrize(
    ("is_referenced", "is_there", "expected"),
    [
        pytest.param(True, False, FindingClass.MISSING, id="named, not there"),
        pytest.param(True, True, FindingClass.IN_USE, id="named and there: created after the listing"),
        pytest.param(False, False, FindingClass.GONE, id="trimmed during the audit"),
        pytest.param(None, False, FindingClass.UNKNOWN, id="owner unreadable"),
        pytest.param(True, None, FindingClass.UNKNOWN, id="ledger unreadable"),
        pytest.param(False, None, FindingClass.UNKNOWN, id="ledger unreadable, reference gone"),
    ],
)
def test_only_a_confirmed_reference_without_its_ledger_is_missing(
    is_referenced: bool | None, is_there: bool | None, expected: FindingClass
) -> None:
    assert check_of_missing(is_referenced=is_referenced, is_there=is_there).finding_class is expected


def test_a_candidate_seen_only_once_is_unknown_after_the_second_check() -> None:
    assert concluded(SuspectCheck(FindingClass.ORPHAN, Reason.OWNER_ABSENT_ONCE)).finding_class is FindingClass.UNKNOWN
    assert concluded(SuspectCheck(FindingClass.ORPHAN, Reason.UNREFERENCED)).finding_class is FindingClass.ORPHAN


@pytest.mark.parametrize(
    ("key", "unreadable", "expected"),
    [
        pytest.param(f"data:{TOPIC}", "/managed-ledgers/public/default", "/managed-ledgers/public/default", id="above"),
        pytest.param(f"data:{TOPIC}", f"/managed-ledgers/{TOPIC}", f"/managed-ledgers/{TOPIC}", id="itself"),
        pytest.param(f"data:{TOPIC}", "/managed-ledgers/public/defaul", None, id="a namespace of a similar name"),
        pytest.param(f"data:{TOPIC}", f"/managed-ledgers/{TOPIC}/{CURSOR}", None, id="only its cursor"),
        pytest.param(
            f"cursor:{TOPIC}/{CURSOR}",
            f"/managed-ledgers/{TOPIC}/{CURSOR}",
            f"/managed-ledgers/{TOPIC}/{CURSOR}",
            id="the cursor",
        ),
        pytest.param(f"schema:{SCHEMA}", "/schemas", "/schemas", id="all schemas"),
        pytest.param(f"schema:{SCHEMA}", "/managed-ledgers", None, id="another tree"),
        pytest.param(f"data:{TOPIC}", "/", "/", id="everything"),
    ],
)
def test_an_unreadable_path_affects_itself_and_all_paths_below(key: str, unreadable: str, expected: str | None) -> None:
    assert affected_by(owner_paths(key), [unreadable]) == expected


def test_objects_claim_the_owner_that_their_index_embeds() -> None:
    claim = claim_of_objects(7, UUID, data_custom(), {})

    assert isinstance(claim, PendingDelete)
    assert (claim.managed_ledger, claim.ledger_type, claim.ledger_id) == (TOPIC, LedgerType.OFFLOAD_LEDGER, 7)
    assert claim.offload_context is not None
    assert claim.offload_context.uuid == UUID


def test_objects_without_an_index_claim_the_owner_in_their_user_metadata() -> None:
    claim = claim_of_objects(7, UUID, None, {"managedledgername": TOPIC})

    assert isinstance(claim, PendingDelete)
    assert claim.managed_ledger == TOPIC


@pytest.mark.parametrize(
    ("custom", "user", "expected"),
    [
        pytest.param(None, {}, FindingClass.UNKNOWN, id="no metadata names an owner"),
        pytest.param({}, {}, FindingClass.UNKNOWN, id="index of an old broker"),
        pytest.param({"application": b"x"}, {}, FindingClass.FOREIGN, id="another application's"),
        pytest.param(cursor_custom(), {}, FindingClass.UNKNOWN, id="cursors are never offloaded"),
        pytest.param(None, {"managedledgername": "?"}, FindingClass.UNKNOWN, id="no topic's name"),
    ],
)
def test_objects_without_proof_are_never_orphans(
    custom: Mapping[str, bytes] | None, user: Mapping[str, str], expected: FindingClass
) -> None:
    claim = claim_of_objects(7, UUID, custom, user)

    assert isinstance(claim, Unclaimed)
    assert claim.finding_class is expected


def test_in_use_and_gone_are_counted_only() -> None:
    assert {FindingClass.IN_USE, FindingClass.GONE} == NOT_FINDINGS
