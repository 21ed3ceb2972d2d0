"""Measures requests about an honest broker's topics beside a broker that hangs, fails or answers very slowly.

    python -m bench.hostile_broker [--chunks N] [--topics N] [--timeout SECONDS]

Prints the median, the 99th percentile and the longest time of a chunk's requests for each misbehaviour. The first
chunks beside a broker that hangs take its timeout; then the process has recorded that it hangs
(streaming/adapters/pulsar/silence.py).
"""

import argparse
import statistics
import time
from contextlib import ExitStack

from streaming.adapters.pulsar.admin_api.broker import AdminBroker
from streaming.adapters.pulsar.http import PulsarAdminSettings
from tests.contract.test_hostile_broker import (
    Misbehave,
    Server,
    dribbles,
    dribbles_headers,
    fails,
    is_silent,
    redirects,
    serving,
)
from udfs.records import Presence

WARM_UP = 2


def measure(misbehave: Misbehave | None, options: argparse.Namespace) -> list[float]:
    """Return the seconds of each chunk, including the requests about the hostile broker's topics."""
    honest, hostile = Server("honest"), Server("hostile", misbehave)
    with ExitStack() as stack:
        stack.enter_context(serving(honest, hostile))
        settings = PulsarAdminSettings(admin_url=honest.url, timeout_seconds=options.timeout)
        broker = AdminBroker(settings, lambda: [honest.url, hostile.url])
        stack.callback(broker.close)
        names = [*honest.names[: options.topics], *hostile.names[: options.topics]]
        took = []
        for _ in range(WARM_UP + options.chunks):
            began = time.monotonic()
            views = broker.views(names)
            took.append(time.monotonic() - began)
            assert all(view.presence is Presence.PRESENT for view in views[: options.topics])
        return took


def main() -> None:
    """Measure each misbehaviour."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--topics", type=int, default=60)
    parser.add_argument("--timeout", type=float, default=2.0)
    options = parser.parse_args()
    print(f"{'beside a broker that':22} {'first':>7} {'second':>7} {'median':>7} {'p99':>7} {'longest':>7}  seconds")
    for misbehave in (None, fails, redirects, is_silent, dribbles, dribbles_headers):
        first, second, *took = measure(misbehave, options)
        p99 = sorted(took)[max(0, round(0.99 * len(took)) - 1)]
        name = misbehave.__name__ if misbehave else "answers"
        times = (first, second, statistics.median(took), p99, max(took))
        print(f"{name:22} " + " ".join(f"{seconds:7.2f}" for seconds in times))


if __name__ == "__main__":
    main()
