"""Paths that an audit could not read, and the findings that they affect."""

from dataclasses import replace

import pytest

from streaming.audit.audit_options import FindingFilters
from streaming.audit.certificate import (
    MAX_NAMESPACES,
    MAX_PROBLEMS,
    Certificate,
    blocked_paths,
    unjudged,
    whole_errors,
)
from tests.unit.audit.results import CERTIFICATE


@pytest.mark.parametrize(
    ("path", "filters", "concerns"),
    [
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(), True, id="no filter"),
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(namespace="a/b"), True, id="below"),
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(namespace="a/bb"), False, id="a similar name"),
        pytest.param("/managed-ledgers/a", FindingFilters(namespace="a/b"), True, id="above"),
        pytest.param("/managed-ledgers/a", FindingFilters(tenant="ab"), False, id="another tenant"),
        pytest.param("/schemas/a/b/t", FindingFilters(tenant="a"), True, id="schema of the tenant"),
        pytest.param("/ledgers/00/0001", FindingFilters(tenant="a"), True, id="ledgers may be anybody's"),
        pytest.param("s3 http://x b", FindingFilters(tenant="a"), True, id="objects may be anybody's"),
    ],
)
def test_an_unreadable_path_affects_publications_that_it_may_hide_findings_from(
    path: str, filters: FindingFilters, concerns: bool
) -> None:
    certificate = replace(CERTIFICATE, unreadable=((path, "no right"),))

    assert bool(certificate.faults_within(filters)) is concerns
    assert not certificate.is_complete


def test_a_fault_of_the_whole_audit_affects_every_publication() -> None:
    certificate = replace(CERTIFICATE, errors=("wrong cluster",))

    assert certificate.faults_within(FindingFilters(tenant="a")) == ("wrong cluster",)
    assert blocked_paths([], certificate.errors) == ("/",)


def test_too_many_unreadable_paths_make_everything_unreadable() -> None:
    problems = [(f"/managed-ledgers/{n}", "") for n in range(MAX_PROBLEMS)]

    assert len(blocked_paths(problems, ())) == MAX_PROBLEMS
    assert blocked_paths([*problems, ("/schemas", "")], ()) == ("/",)


def test_ledgers_that_name_owners_without_any_owner_indicate_a_wrong_cluster() -> None:
    assert whole_errors({"owners": 0}, claimed=3)
    assert not whole_errors({"owners": 1}, claimed=3)
    assert not whole_errors({"owners": 0}, claimed=0)


def test_a_certificate_survives_a_round_trip_through_json() -> None:
    certificate = replace(CERTIFICATE, unreadable=(("/a", "b"),), errors=("c",))

    assert Certificate.from_json(certificate.as_json()) == certificate
    assert certificate.as_json()["complete"] is False


def test_suspects_without_an_answer_of_brokers_make_an_audit_incomplete_if_the_filters_select_them() -> None:
    found = unjudged([("a/b", 217, "maybe loaded: no answer in time"), ("c/d", 1, "")], [("/managed-ledgers/c", "no")])
    certificate = replace(CERTIFICATE, unreadable=tuple(found))

    assert found == [
        ("/managed-ledgers/a/b", "217 suspects could not be judged, such as: maybe loaded: no answer in time")
    ]
    assert not certificate.is_complete
    assert certificate.faults_within(FindingFilters(tenant="a"))
    assert not certificate.faults_within(FindingFilters(tenant="c"))
    assert unjudged([], []) == []


@pytest.mark.parametrize("counts", [[("", 1, "")], [(f"t/{n}", 1, "") for n in range(MAX_NAMESPACES + 1)]])
def test_suspects_without_a_namespace_or_in_too_many_affect_every_filter(counts: list[tuple[str, int, str]]) -> None:
    certificate = replace(CERTIFICATE, unreadable=tuple(unjudged(counts, [])))

    assert len(certificate.faults_within(FindingFilters(tenant="z"))) == 1


def test_namespaces_that_are_not_named_stay_incomplete_although_the_walk_could_not_read_a_named_one() -> None:
    counts = [(f"t/{n}", 1, "") for n in range(MAX_NAMESPACES + 1)]
    certificate = replace(CERTIFICATE, unreadable=tuple(unjudged(counts, [("/managed-ledgers/t/0", "no")])))

    assert certificate.faults_within(FindingFilters(tenant="z"))
