"""The plan of a publication: one for one choice of orphans, remembered until the topic holds all."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from streaming.audit.options import FindingFilters
from streaming.audit.publication.plan import PublicationPlan, finish, plan_name, plans, unfinished
from tests.unit.audit.results import place_at


def test_a_publication_has_one_name_for_one_choice_of_filters() -> None:
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


def test_plans_are_remembered_until_all_is_stored(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    plan = PublicationPlan("audit-1-x", "1", 5, 3, 30, {"persistent://a/b/c-partition-0": (7, -1)})

    assert plans(place) == []
    finish(place, plan)
    assert plans(place) == [replace(plan, is_done=True)]


def test_a_turn_goes_on_with_what_was_cut_short_under_its_own_filters_only(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    mine, others = FindingFilters(tenant="a"), FindingFilters(tenant="b")
    for number, filters in enumerate((mine, others, mine)):
        plan = PublicationPlan(plan_name(str(number), filters), str(number), number, 3, 30, {}, is_done=number == 2)
        place.write(f"published/{plan.name}.json", json.dumps(asdict(plan)).encode())

    assert [plan.audit_id for plan in unfinished(place, mine)] == ["0"]
