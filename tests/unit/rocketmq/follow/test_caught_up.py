"""When `follow --until-caught-up` may end beside a broker that never rests."""

import pytest

from streaming.rocketmq.follow.caught_up import CaughtUp

# when it looked, in seconds; where the log ended; what was indexed; whether the look saw all that was whole
Seen = tuple[float, int, int, bool]


@pytest.mark.parametrize(
    ("seen", "has_caught_up"),
    [
        pytest.param([(0, 100, 100, True)], True, id="all is indexed at once"),
        pytest.param([(0, 100, 40, True), (9, 900, 99, True)], False, id="a byte is left of the first look"),
        pytest.param([(0, 100, 40, True), (9, 900, 100, True)], True, id="all of a look nine seconds ago"),
        pytest.param([(0, 100, 40, True), (10.1, 900, 100, True)], False, id="all of a look more than ten seconds ago"),
        pytest.param(
            [(0, 100, 40, True), (11, 900, 100, True), (20, 2_000, 900, True)], True, id="the second look counts"
        ),
        pytest.param([(0, 100, 40, False), (9, 900, 100, False)], False, id="more was whole than a look tells"),
    ],
)
def test_it_has_caught_up_when_it_has_all_that_a_look_of_the_last_seconds_saw(
    seen: list[Seen], has_caught_up: bool
) -> None:
    caught_up = CaughtUp()
    assert [caught_up.sees(now, end, indexed, is_all=is_all) for now, end, indexed, is_all in seen][-1] is has_caught_up
