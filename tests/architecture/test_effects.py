"""Every effect exists at which a test of tests/integration kills a command or the service."""

from functools import reduce
from importlib import import_module

import pytest

from tests.integration.rocket_dying import EFFECTS, Effect
from tests.integration.test_crash_points import BROKER_FORGETS, RECORDING_AND_PUBLISHING, STARTING_AND_SWEEPING, WAITING
from tests.integration.test_hostile import COMMIT

CRASH_POINTS = (*STARTING_AND_SWEEPING, *RECORDING_AND_PUBLISHING, *WAITING, *BROKER_FORGETS, COMMIT)


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS.keys())
def test_the_function_of_an_effect_exists(effect: Effect) -> None:
    module, _, path = effect.where.partition(":")
    if module != "rocksdb":  # that effect replaces an object at run time
        assert callable(reduce(getattr, path.split("."), import_module(module)))


@pytest.mark.parametrize("effect", CRASH_POINTS)
def test_the_function_of_a_crash_point_exists(effect: str) -> None:
    _when, module, path = effect.partition("#")[0].split(":")
    assert callable(reduce(getattr, path.split("."), import_module(module)))
