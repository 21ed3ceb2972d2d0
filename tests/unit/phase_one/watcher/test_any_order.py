"""In any order of events, each name that the watcher knew and no list has any more is requested once."""

import os
import random
from pathlib import Path

import pytest

from streaming.phase_one.watcher.watcher import Watcher
from streaming.state import watched
from streaming.state.delta.commits import commit
from tests.unit.phase_one.watcher.watching import CrashedError, World
from udfs.paths import managed_ledger_path
from udfs.phase_one.kept_names import unpacked

PATHS = [managed_ledger_path(f"public/default/persistent/topic-{number}") for number in range(4)]
STEPS = 40
SEEDS = int(os.environ.get("LEDGER_REAPER_WATCH_SEEDS", "8"))


class Chance:
    """A world with random events. Ids never come back, because BookKeeper never assigns an id twice."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.world = World(folder)
        self.lists: dict[str, list[int]] = {}
        self.next_id = 1
        self.known: set[int] = set()
        monkeypatch.setattr(
            watched, "commit", lambda *args, **kwargs: self.world.crash.effect(lambda: commit(*args, **kwargs))
        )
        monkeypatch.setattr(watched, "_COMMITS_BEFORE_FOLD", 5)
        self.watcher: Watcher | None = None

    def step(self) -> None:
        acts = [self.grow] * 2 + [self.shrink] * 2 + [self.turn] * 3 + [self.remove, self.deaf, self.crash, self.away]
        act = self.random.choice(acts)
        act()

    def grow(self) -> None:
        path = self.random.choice(PATHS)
        count = self.random.randrange(1, 4)
        new = range(self.next_id, self.next_id + count)
        self.next_id += count
        self.write(path, [*self.lists.get(path, []), *new])

    def shrink(self) -> None:
        if self.lists:
            path = self.random.choice(sorted(self.lists))
            self.write(path, self.lists[path][self.random.randrange(3) :])

    def remove(self) -> None:
        if self.lists:
            path = self.random.choice(sorted(self.lists))
            del self.lists[path]
            self.world.clock.advance(1)
            self.world.tree.remove(path)

    def write(self, path: str, ids: list[int]) -> None:
        self.lists[path] = ids
        self.world.clock.advance(1)
        self.world.list(*ids, at=path)

    def deaf(self) -> None:
        """Lose the watches, with or without an event."""
        if self.random.random() < 0.5:
            self.world.hints.drop()
        else:
            self.world.hints._paths.clear()

    def crash(self) -> None:
        """Let the watcher crash at one of its next effects."""
        self.world.crash.at = self.world.crash.effects + self.random.randrange(1, 4)
        self.world.crash.is_after = self.random.random() < 0.5

    def away(self) -> None:
        self.watcher = None

    def turn(self) -> None:
        self.world.clock.advance(self.random.choice([1_000, 10_000, 70_000]))
        try:
            if self.watcher is None:
                self.watcher = self.world.start()
                self.learn()
            self.watcher.turn()
            self.learn()
        except CrashedError:
            self.watcher = None

    def learn(self) -> None:
        """Record the names in the watcher's state."""
        for path, kept in self.world.parts.watched.nodes.items():
            self.known.update(ledger_id for _component, ledger_id, _uuid in unpacked(path, kept))

    def rest(self) -> None:
        """Let time pass without further failures."""
        self.world.crash.at = -1
        for _ in range(6):
            self.turn()
            self.world.clock.advance(70_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_known_name_that_is_gone_is_requested_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Chance(tmp_path, seed, monkeypatch)
    for _ in range(STEPS):
        scene.step()
    scene.rest()
    listed = {each for ids in scene.lists.values() for each in ids}
    assert scene.world.topic.ids == sorted(scene.known - listed)
