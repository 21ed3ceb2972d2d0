from pathlib import Path

from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.inspect.report import check_page, plan_page
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths
from tests.unit.rocketmq.inspect.test_printing import WELL, WRONG


def test_a_page_has_the_output_of_the_command(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    assert "This store can be converted." in plan_page(plan_of(paths(tmp_path)))
    (tmp_path / "abort").write_bytes(b"")
    assert "1 reasons against a conversion." in plan_page(plan_of(paths(tmp_path)))
    assert "no fault: " in check_page(WELL)
    assert "it is missing from the database" in check_page(WRONG)


def test_names_that_others_chose_are_no_markup() -> None:
    queue = WELL.queues[0]._replace(topic="<script>x</script>")
    page = check_page(WELL._replace(queues=(queue,)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
