"""Whether an offload attempt's objects may go: every reason to keep them, and both sides of every boundary."""

from dataclasses import replace

import pytest

from tests.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    NOW_MS,
    OTHER_TOPIC,
    TOPIC,
    UUID,
    data_custom,
    gone,
    metadata,
)
from tests.builders import reference as reference_to
from udfs.records import (
    LedgerComponent,
    LedgerMetadata,
    LedgerType,
    OffloadContext,
    OffloadFacts,
    Outcome,
    PendingDelete,
    Presence,
    Reason,
    Reference,
    StoredObject,
    UnfinishedUpload,
    Verdict,
)
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_offload import OffloadCase, OffloadPolicy, judge_offload, refuse_request

OTHER_UUID = "fedcba98-7654-3210-0123-456789abcdef"
REQUEST = PendingDelete(
    managed_ledger=TOPIC,
    component=LedgerComponent.MANAGED_LEDGER,
    ledger_type=LedgerType.OFFLOAD_LEDGER,
    ledger_id=5,
    offload_context=OffloadContext(uuid=UUID),
)
POLICY = OffloadPolicy(
    Policy(min_age_ms=5 * MINUTE_MS, above_newest_quarantine_ms=DAY_MS, absence_interval_ms=10 * MINUTE_MS),
    offload_grace_ms=HOUR_MS,
    cluster="ours",
)
SIGNED = {"pulsarclustername": "ours", "managedledgername": TOPIC}
OLD_MS = NOW_MS - 30 * DAY_MS


def stored(changed_ms: int = OLD_MS, **metadata: str) -> StoredObject:
    return StoredObject(size_bytes=1_000, last_modified_ms=changed_ms, user_metadata=SIGNED | metadata)


def unsigned(changed_ms: int = OLD_MS, **metadata: str) -> StoredObject:
    return StoredObject(size_bytes=1_000, last_modified_ms=changed_ms, user_metadata=metadata)


def upload(begun_ms: int) -> UnfinishedUpload:
    return UnfinishedUpload("name", "id", begun_ms)


PAIR = OffloadFacts(data=None, index=stored(), metadata=metadata(data_custom()), index_only=True)
NOTHING = OffloadFacts(data=None, index=None, index_detail="there is no index object")
DATA_ONLY = replace(NOTHING, data=stored())
PARTS_ONLY = replace(NOTHING, uploads=(upload(OLD_MS),), ledger=metadata(data_custom()), ledger_unread="")
UNASKED = replace(NOTHING, uploads=(upload(OLD_MS),))
REFERENCE = replace(reference_to(), offloads=frozenset({(5, OTHER_UUID), (8, UUID)}))
DELETABLE = OffloadCase(request=REQUEST, objects=PAIR, reference=REFERENCE, cluster_names_are_unique=True)


def verdict_of(case: OffloadCase, policy: OffloadPolicy = POLICY) -> tuple[Outcome, Reason]:
    verdict = judge_offload(case, policy, now_ms=NOW_MS)
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize("reference", [pytest.param(REFERENCE, id="listed"), pytest.param(gone(), id="owner gone")])
@pytest.mark.parametrize("objects", [PAIR, DATA_ONLY, PARTS_ONLY], ids=["a pair", "data", "parts"])
def test_our_clusters_name_proves_nothing_if_another_cluster_may_have_it(
    objects: OffloadFacts, reference: Reference
) -> None:
    shared = replace(DELETABLE, objects=objects, reference=reference, cluster_names_are_unique=False)
    assert verdict_of(shared) == (Outcome.DEAD_LETTER, Reason.PROOF_MISSING)


def test_in_a_bucket_of_one_cluster_its_name_need_not_be_unique() -> None:
    alone = replace(DELETABLE, exclusive=True, cluster_names_are_unique=False)
    assert verdict_of(alone) == (Outcome.DELETED, Reason.UNREFERENCED)


def test_an_old_attempt_of_a_ledger_that_is_listed_with_another_uuid_is_garbage() -> None:
    assert judge_offload(DELETABLE, POLICY, now_ms=NOW_MS) == Verdict(Outcome.DELETED, Reason.UNREFERENCED)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        pytest.param(
            replace(REFERENCE, offloads=frozenset({(5, UUID)})),
            (Outcome.RETRY, Reason.IN_USE),
            id="listed with this UUID",
        ),
        pytest.param(
            replace(REFERENCE, offloads=frozenset({(5, OTHER_UUID), (5, UUID)})),
            (Outcome.RETRY, Reason.IN_USE),
            id="listed twice, once with this UUID",
        ),
        pytest.param(
            replace(REFERENCE, offloads=frozenset({(6, UUID)})),
            (Outcome.DELETED, Reason.UNREFERENCED),
            id="another ledger has the UUID",
        ),
        pytest.param(
            replace(REFERENCE, presence=Presence.UNREADABLE, offloads=frozenset()),
            (Outcome.RETRY, Reason.OWNER_UNREADABLE),
            id="owner unreadable",
        ),
        pytest.param(
            replace(REFERENCE, presence=Presence.UNREADABLE, offloads=frozenset(), is_unavailable=True),
            (Outcome.RETRY, Reason.BROKER_UNAVAILABLE),
            id="brokers could not be asked",
        ),
    ],
)
def test_the_owner_decides_by_uuid(reference: Reference, expected: tuple[Outcome, Reason]) -> None:
    assert verdict_of(replace(DELETABLE, reference=reference)) == expected


@pytest.mark.parametrize(
    "objects",
    [pytest.param(NOTHING, id="nothing stored"), pytest.param(PAIR, id="a pair"), pytest.param(PARTS_ONLY, id="parts")],
)
def test_an_owner_that_refers_to_an_attempt_keeps_any_stored_objects(objects: OffloadFacts) -> None:
    in_use = replace(REFERENCE, offloads=frozenset({(5, UUID)}))
    assert verdict_of(replace(DELETABLE, objects=objects, reference=in_use)) == (Outcome.RETRY, Reason.IN_USE)


def test_nothing_under_the_name_is_already_gone_even_of_an_owner_seen_gone_once() -> None:
    assert verdict_of(replace(DELETABLE, objects=NOTHING)) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)
    assert verdict_of(replace(DELETABLE, objects=NOTHING, reference=gone())) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            replace(PAIR, index=stored(pulsarclustername="theirs")), Reason.OTHER_CLUSTER, id="index: other cluster"
        ),
        pytest.param(
            replace(PAIR, data=stored(pulsarclustername="theirs")), Reason.OTHER_CLUSTER, id="data: other cluster"
        ),
        pytest.param(
            replace(PAIR, metadata=metadata(data_custom(OTHER_TOPIC))),
            Reason.OTHER_OWNER,
            id="index embeds another owner",
        ),
        pytest.param(
            replace(PAIR, index=stored(managedledgername=OTHER_TOPIC)),
            Reason.OTHER_OWNER,
            id="index is signed for another owner than it embeds",
        ),
        pytest.param(
            replace(PAIR, data=stored(managedledgername=OTHER_TOPIC)),
            Reason.OTHER_OWNER,
            id="data object names another owner",
        ),
        pytest.param(
            replace(PAIR, metadata=metadata({"application": b"else"})),
            Reason.NOT_PULSARS,
            id="another application's ledger",
        ),
        pytest.param(
            replace(PAIR, metadata=metadata(data_custom() | {"pulsar/cursor": b"c"})),
            Reason.OTHER_COMPONENT,
            id="a cursor's ledger",
        ),
        pytest.param(
            replace(DATA_ONLY, data=stored(managedledgername=OTHER_TOPIC)),
            Reason.OTHER_OWNER,
            id="no index, another owner",
        ),
    ],
)
def test_objects_that_name_another_owner_are_refused_for_good(objects: OffloadFacts, expected: Reason) -> None:
    assert verdict_of(replace(DELETABLE, objects=objects)) == (Outcome.DEAD_LETTER, expected)


@pytest.mark.parametrize(
    ("objects", "exclusive", "expected"),
    [
        pytest.param(PAIR, False, Outcome.DELETED, id="index embeds the owner, is signed by our cluster"),
        pytest.param(DATA_ONLY, False, Outcome.DELETED, id="no index, data object names owner and cluster"),
        pytest.param(
            replace(PAIR, metadata=None, index_only=False),
            False,
            Outcome.DELETED,
            id="index can't be parsed but is signed",
        ),
        pytest.param(
            replace(PAIR, metadata=metadata({})),
            False,
            Outcome.DELETED,
            id="ledger without custom metadata, index signed",
        ),
        pytest.param(replace(PAIR, index=unsigned()), False, Outcome.RETRY, id="owner embedded, cluster not named"),
        pytest.param(
            replace(PAIR, index=unsigned()),
            True,
            Outcome.DELETED,
            id="owner embedded, cluster not named, bucket exclusive",
        ),
        pytest.param(replace(DATA_ONLY, data=unsigned()), False, Outcome.RETRY, id="no index, old broker"),
        pytest.param(
            replace(DATA_ONLY, data=unsigned()), True, Outcome.RETRY, id="no index, old broker, bucket exclusive"
        ),
        pytest.param(
            replace(DATA_ONLY, data=unsigned(pulsarclustername="ours")),
            False,
            Outcome.RETRY,
            id="no index, no owner named",
        ),
        pytest.param(
            replace(PAIR, metadata=metadata({}), index=unsigned()),
            True,
            Outcome.RETRY,
            id="neither custom metadata nor signature",
        ),
        pytest.param(PARTS_ONLY, False, Outcome.RETRY, id="parts have no metadata"),
        pytest.param(PARTS_ONLY, True, Outcome.DELETED, id="parts in an exclusive bucket, the ledger names the owner"),
        pytest.param(UNASKED, True, Outcome.RETRY, id="parts of a ledger that was not read"),
        pytest.param(
            replace(PARTS_ONLY, ledger=None, ledger_unread="too large"),
            True,
            Outcome.RETRY,
            id="parts of a ledger that could not be read, with any list",
        ),
        pytest.param(
            replace(PARTS_ONLY, ledger=None), True, Outcome.DELETED, id="parts of a ledger that only the list names"
        ),
        pytest.param(
            replace(PARTS_ONLY, ledger=metadata({})), True, Outcome.DELETED, id="an old broker's ledger, listed"
        ),
    ],
)
def test_unproven_objects_are_kept(objects: OffloadFacts, exclusive: bool, expected: Outcome) -> None:
    reason = Reason.PROOF_MISSING if expected is Outcome.RETRY else Reason.UNREFERENCED
    assert verdict_of(replace(DELETABLE, objects=objects, exclusive=exclusive)) == (expected, reason)


@pytest.mark.parametrize("offloads", [frozenset(), frozenset({(8, UUID)})], ids=["none", "another ledger"])
@pytest.mark.parametrize("ledger", [None, metadata({})], ids=["gone from BookKeeper", "an old broker's"])
def test_parts_of_a_ledger_are_kept_if_neither_bookkeeper_nor_the_list_proves_the_owner(
    ledger: LedgerMetadata | None, offloads: frozenset[tuple[int, str]]
) -> None:
    reference = replace(REFERENCE, offloads=offloads)
    parts = replace(PARTS_ONLY, ledger=ledger)
    case = replace(DELETABLE, objects=parts, exclusive=True, reference=reference)
    assert verdict_of(case) == (Outcome.RETRY, Reason.PROOF_MISSING)
    gone_owner = replace(case, reference=gone(), absent_since_ms=NOW_MS - HOUR_MS)
    assert verdict_of(gone_owner) == (Outcome.RETRY, Reason.PROOF_MISSING)


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        pytest.param(data_custom(OTHER_TOPIC), Reason.OTHER_OWNER, id="another topic's"),
        pytest.param(data_custom() | {"pulsar/cursor": b"c"}, Reason.OTHER_COMPONENT, id="a cursor's"),
        pytest.param({"application": b"else"}, Reason.NOT_PULSARS, id="another application's"),
    ],
)
def test_parts_of_another_owners_ledger_are_refused_for_good_with_any_list(
    custom: dict[str, bytes], expected: Reason
) -> None:
    parts = replace(PARTS_ONLY, ledger=metadata(custom))
    assert verdict_of(replace(DELETABLE, objects=parts, exclusive=True)) == (Outcome.DEAD_LETTER, expected)


def test_no_clusters_name_is_proof_while_our_own_is_unknown() -> None:
    nameless = replace(POLICY, cluster="")
    assert verdict_of(DELETABLE, nameless) == (Outcome.RETRY, Reason.PROOF_MISSING)
    by_owner = replace(DELETABLE, objects=replace(PAIR, index=unsigned()), exclusive=True)
    assert verdict_of(by_owner, nameless) == (Outcome.DELETED, Reason.UNREFERENCED)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(replace(PAIR, index=stored(NOW_MS - 5 * MINUTE_MS)), None, id="pair, exactly min_age old"),
        pytest.param(
            replace(PAIR, index=stored(NOW_MS - 5 * MINUTE_MS + 1)),
            Reason.TOO_YOUNG,
            id="pair, one millisecond younger",
        ),
        pytest.param(replace(PAIR, data=stored(NOW_MS)), Reason.TOO_YOUNG, id="old index, data object stored again"),
        pytest.param(replace(PAIR, index=stored(NOW_MS + MINUTE_MS)), Reason.TOO_YOUNG, id="stored in the future"),
        pytest.param(replace(DATA_ONLY, data=stored(NOW_MS - HOUR_MS)), None, id="no index, exactly the grace old"),
        pytest.param(
            replace(DATA_ONLY, data=stored(NOW_MS - HOUR_MS + 1)),
            Reason.OFFLOAD_IN_PROGRESS,
            id="no index, one millisecond younger than the grace",
        ),
        pytest.param(
            replace(NOTHING, index=stored(NOW_MS - 5 * MINUTE_MS), metadata=metadata(data_custom())),
            None,
            id="index left over, no data: brokers never upload an index first",
        ),
        pytest.param(replace(PARTS_ONLY, uploads=(upload(NOW_MS - HOUR_MS),)), None, id="parts, exactly the grace old"),
        pytest.param(
            replace(PARTS_ONLY, uploads=(upload(OLD_MS), upload(NOW_MS - HOUR_MS + 1))),
            Reason.OFFLOAD_IN_PROGRESS,
            id="one of two uploads is younger",
        ),
        pytest.param(
            replace(PAIR, uploads=(upload(NOW_MS - 1),)),
            Reason.OFFLOAD_IN_PROGRESS,
            id="an old pair that is uploaded again",
        ),
    ],
)
def test_an_upload_that_may_still_continue_is_kept(objects: OffloadFacts, expected: Reason | None) -> None:
    verdict = (Outcome.RETRY, expected) if expected else (Outcome.DELETED, Reason.UNREFERENCED)
    assert verdict_of(replace(DELETABLE, objects=objects, exclusive=True)) == verdict


@pytest.mark.parametrize(
    ("newest_id", "age_ms", "expected"),
    [
        pytest.param(5, HOUR_MS, (Outcome.DELETED, Reason.UNREFERENCED), id="the list is as new as the ledger"),
        pytest.param(4, HOUR_MS, (Outcome.RETRY, Reason.ABOVE_NEWEST), id="the list is older than the ledger"),
        pytest.param(-1, HOUR_MS, (Outcome.RETRY, Reason.ABOVE_NEWEST), id="the list is empty"),
        pytest.param(4, DAY_MS - 1, (Outcome.RETRY, Reason.ABOVE_NEWEST), id="one millisecond early"),
        pytest.param(4, DAY_MS, (Outcome.DELETED, Reason.UNREFERENCED), id="after the quarantine"),
    ],
)
def test_a_list_older_than_the_ledger_does_not_count_at_once(
    newest_id: int, age_ms: int, expected: tuple[Outcome, Reason]
) -> None:
    case = replace(
        DELETABLE,
        objects=replace(PAIR, index=stored(NOW_MS - age_ms)),
        reference=replace(REFERENCE, newest_id=newest_id),
    )
    assert verdict_of(case) == expected


@pytest.mark.parametrize(
    ("since_ms", "expected"),
    [
        pytest.param(None, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="never seen gone before"),
        pytest.param(NOW_MS - 10 * MINUTE_MS, (Outcome.DELETED, Reason.OWNER_GONE), id="seen gone long enough ago"),
        pytest.param(
            NOW_MS - 10 * MINUTE_MS + 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="one millisecond early"
        ),
        pytest.param(NOW_MS - DAY_MS - 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="a sighting that has expired"),
        pytest.param(NOW_MS + 1, (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE), id="a sighting from the future"),
    ],
)
def test_an_owner_must_be_seen_gone_twice(since_ms: int | None, expected: tuple[Outcome, Reason]) -> None:
    assert verdict_of(replace(DELETABLE, reference=gone(), absent_since_ms=since_ms)) == expected


def test_a_sighting_does_not_count_while_the_owner_exists() -> None:
    in_use = replace(REFERENCE, offloads=frozenset({(5, UUID)}))
    assert verdict_of(replace(DELETABLE, absent_since_ms=OLD_MS)) == (Outcome.DELETED, Reason.UNREFERENCED)
    assert verdict_of(replace(DELETABLE, reference=in_use, absent_since_ms=OLD_MS)) == (Outcome.RETRY, Reason.IN_USE)


def test_reasons_to_keep_go_before_reasons_to_refuse() -> None:
    foreign = replace(PAIR, index=stored(NOW_MS, pulsarclustername="theirs"))
    in_use = replace(REFERENCE, offloads=frozenset({(5, UUID)}))
    assert verdict_of(replace(DELETABLE, objects=foreign, reference=in_use)) == (Outcome.RETRY, Reason.IN_USE)
    assert verdict_of(replace(DELETABLE, objects=foreign)) == (Outcome.DEAD_LETTER, Reason.OTHER_CLUSTER)


@pytest.mark.parametrize(
    "component", [component for component in LedgerComponent if component is not LedgerComponent.MANAGED_LEDGER]
)
def test_a_component_that_no_broker_offloads_is_refused_before_anything_is_read(component: LedgerComponent) -> None:
    refused = refuse_request(replace(REQUEST, component=component, cursor_name="c", schema_id="s"))
    assert refused is not None
    assert (refused.outcome, refused.reason) == (Outcome.DEAD_LETTER, Reason.OTHER_COMPONENT)


def test_a_request_that_names_no_upload_is_refused() -> None:
    refused = refuse_request(replace(REQUEST, offload_context=None))
    assert refused is not None
    assert (refused.outcome, refused.reason) == (Outcome.DEAD_LETTER, Reason.BAD_OFFLOAD_CONTEXT)
    assert refuse_request(REQUEST) is None
    with pytest.raises(ValueError, match="names no upload"):
        judge_offload(replace(DELETABLE, request=replace(REQUEST, offload_context=None)), POLICY, now_ms=NOW_MS)
