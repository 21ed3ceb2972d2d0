"""Every effect at which tests/integration/rocket_dying.py kills a command exists."""

from functools import reduce
from importlib import import_module

import pytest

from tests.integration.rocket_dying import EFFECTS, Effect


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS.keys())
def test_the_function_of_an_effect_exists(effect: Effect) -> None:
    module, _, path = effect.where.partition(":")
    if module != "rocksdb":  # that effect replaces an object at run time
        assert callable(reduce(getattr, path.split("."), import_module(module)))
