"""Sets how often Python searches for cyclic garbage."""

import gc


def search_rarely() -> None:
    """Make Python search for cycles more rarely than by its own thresholds (700, 10, 10).

    With those, it searches the objects of loaded modules again and again, which takes a tenth of the time of a short
    command; and in a Spark task the thousands of rows, none of them in a cycle, which takes a quarter of its time.
    """
    gc.set_threshold(50_000, 50, 100)
