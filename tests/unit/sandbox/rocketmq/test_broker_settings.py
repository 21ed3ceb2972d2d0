from pathlib import Path

import pytest

from streaming.sandbox.rocketmq.broker_home import PORTS, RocketHome, RocketPart, RocketSpec, StoreMode
from streaming.sandbox.rocketmq.broker_settings import settings

HOME = RocketHome(Path("/home-of-it"))
SPEC = RocketSpec(version="5.3.3", address="10.0.0.2", ports={name: 1000 + number for number, name in enumerate(PORTS)})


def broker(mode: StoreMode, version: str = "5.3.3", **own: str) -> dict[str, object]:
    return settings(
        HOME,
        RocketPart.BROKER,
        RocketSpec(version=version, address=SPEC.address, ports=SPEC.ports, mode=mode, settings=own),
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(StoreMode.FILE, ("default", None), id="files"),
        pytest.param(StoreMode.BOTH, ("default", True), id="both: files are read"),
        pytest.param(StoreMode.ROCKSDB, ("defaultRocksDB", None), id="RocksDB"),
    ],
)
def test_a_mode_is_what_the_broker_calls_so(mode: StoreMode, expected: tuple[str, bool | None]) -> None:
    found = broker(mode)

    assert (found["storeType"], found.get("rocksdbCQDoubleWriteEnable")) == expected


@pytest.mark.parametrize("mode", StoreMode)
@pytest.mark.parametrize("version", ["5.3.3", "5.5.0", "5.5.1"])
def test_only_55_with_both_kinds_of_queues_needs_light_queues_in_rocksdb(mode: StoreMode, version: str) -> None:
    is_needed = mode is StoreMode.BOTH and version in ("5.5.0", "5.5.1")

    assert ("combineCQUseRocksdbForLmq" in broker(mode, version)) == is_needed


def test_asked_for_settings_win() -> None:
    assert broker(StoreMode.FILE, enableLmq="false")["enableLmq"] == "false"


def test_all_that_the_broker_keeps_lies_in_its_store() -> None:
    paths = [value for value in broker(StoreMode.FILE).values() if isinstance(value, Path)]

    assert len(paths) == 3
    assert all(path.is_relative_to(HOME.store) for path in paths)


@pytest.mark.parametrize("part", RocketPart)
def test_both_listen_at_the_address_of_the_spec(part: RocketPart) -> None:
    found = settings(HOME, part, SPEC)

    assert found["bindAddress"] == SPEC.address
    assert found["listenPort"] == SPEC.ports[part]


def test_what_a_home_remembers_comes_back(tmp_path: Path) -> None:
    home = RocketHome(tmp_path)
    spec = RocketSpec(
        version="5.5.0", address="10.0.0.2", ports=SPEC.ports, mode=StoreMode.ROCKSDB, settings={"enableLmq": "false"}
    )
    assert home.load() is None

    home.save(spec)

    assert home.load() == spec
    assert home.load().mode is StoreMode.ROCKSDB  # type: ignore[union-attr]
