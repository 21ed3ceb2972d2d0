"""A process is alive while its main loop comes round, and ready while nothing keeps it from its job."""

from streaming.prometheus.health import STALLED_S, Health


class Now:
    s = 0.0


def test_a_process_is_ready_once_every_reason_is_gone() -> None:
    health = Health()
    health.not_ready("start", "starting")
    health.not_ready("paused", "PAUSED: maintenance")
    assert health.waits_for == "starting\nPAUSED: maintenance"
    assert not health.stalled
    health.not_ready("start", "")
    health.not_ready("start", "")
    assert health.waits_for == "PAUSED: maintenance"
    health.not_ready("paused", "")
    assert not health.waits_for


def test_a_main_loop_that_does_not_come_round_is_dead_but_not_before_it_has_started() -> None:
    now = Now()
    health = Health(monotonic=lambda: now.s)
    now.s = 10 * STALLED_S
    assert not health.stalled, "a start may wait for brokers"
    health.beat()
    now.s += STALLED_S
    assert not health.stalled
    now.s += 1
    assert "has not completed a round for 601 s" in health.stalled
    assert health.waits_for == health.stalled
    health.beat()
    assert not health.stalled


def test_a_main_loop_that_has_ended_is_dead() -> None:
    health = Health()
    health.beat()
    health.end("stopping")
    assert (health.stalled, health.waits_for) == ("stopping", "stopping")
