"""When `follow --until-caught-up` may end beside a broker that never rests."""

import pytest

from streaming.rocketmq.follow.lag import CaughtUp

# a pass: its time in seconds, the end of the log, what was indexed, whether it reported everything that was complete
Pass = tuple[float, int, int, bool]


@pytest.mark.parametrize(
    ("passes", "has_caught_up"),
    [
        pytest.param([(0, 100, 100, True)], True, id="all is indexed at once"),
        pytest.param([(0, 100, 40, True), (9, 900, 99, True)], False, id="a byte of the first pass is left"),
        pytest.param([(0, 100, 40, True), (9, 900, 100, True)], True, id="a pass nine seconds ago"),
        pytest.param([(0, 100, 40, True), (10.1, 900, 100, True)], False, id="a pass more than ten seconds ago"),
        pytest.param(
            [(0, 100, 40, True), (11, 900, 100, True), (20, 2_000, 900, True)], True, id="the second pass counts"
        ),
        pytest.param([(0, 100, 40, False), (9, 900, 100, False)], False, id="more was complete than a pass reports"),
    ],
)
def test_it_has_caught_up_with_everything_that_a_pass_of_the_last_seconds_saw(
    passes: list[Pass], has_caught_up: bool
) -> None:
    caught_up = CaughtUp()
    results = [caught_up.update(now, end, indexed, is_all=is_all) for now, end, indexed, is_all in passes]
    assert results[-1] is has_caught_up
