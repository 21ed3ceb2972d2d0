"""The plan of a publication: one for the same filters, unfinished until the topic has all requests."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from streaming.audit.audit_options import FindingFilters
from streaming.audit.publication.publication_plan import PublicationPlan, finish, plan_name, plans, unfinished
from tests.unit.audit.results import output_at


def test_a_publication_has_one_name_for_the_same_filters() -> None:
    assert plan_name("1", FindingFilters(tenant="a")) == plan_name("1", FindingFilters(tenant="a"))
    assert (
        len(
            {
                plan_name("1", FindingFilters()),
                plan_name("1", FindingFilters(tenant="a")),
                plan_name("2", FindingFilters()),
            }
        )
        == 3
    )


def test_plans_are_unfinished_until_all_requests_are_stored(tmp_path: Path) -> None:
    output = output_at(tmp_path)
    plan = PublicationPlan(
        name="audit-1-x",
        audit_id="1",
        at_ms=5,
        requests=3,
        size_bytes=30,
        after={"persistent://a/b/c-partition-0": (7, -1)},
    )

    assert plans(output) == []
    finish(output, plan)
    assert plans(output) == [replace(plan, is_done=True)]


def test_a_repeated_audit_resumes_interrupted_publications_with_its_own_filters_only(tmp_path: Path) -> None:
    output = output_at(tmp_path)
    filters_a, filters_b = FindingFilters(tenant="a"), FindingFilters(tenant="b")
    for number, filters in enumerate((filters_a, filters_b, filters_a)):
        plan = PublicationPlan(
            name=plan_name(str(number), filters),
            audit_id=str(number),
            at_ms=number,
            requests=3,
            size_bytes=30,
            after={},
            is_done=number == 2,
        )
        output.write(f"published/{plan.name}.json", json.dumps(asdict(plan)).encode())

    assert [plan.audit_id for plan in unfinished(output, filters_a)] == ["0"]
