"""The thresholds at which Python searches for cyclic garbage."""

import gc

from streaming.garbage import search_rarely


def test_python_searches_more_rarely_than_by_its_own_thresholds() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        search_rarely()
        assert all(now > own for now, own in zip(gc.get_threshold(), (700, 10, 10), strict=True))
    finally:
        gc.set_threshold(*before)
