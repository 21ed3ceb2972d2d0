"""An archive of Java classes is made once and used where it fits; without one, everything works as before."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from streaming.config.sections import SparkSettings
from streaming.spark import classes
from streaming.spark.ivy import java

SPARK = SparkSettings(
    master="local[2]",
    ui_address="127.0.0.1",
    ui_port=0,
    driver_memory="1g",
    java_options="",
    local_dir="",
)
GIB = 1 << 30


def _options(cache: Path, jars: tuple[Path, ...] = (), *, spark: SparkSettings = SPARK) -> tuple[str, ...]:
    return classes.options(spark, jars, cache / "scratch", cache)


def _name(cache: Path, jars: tuple[Path, ...] = (), *, spark: SparkSettings = SPARK) -> str:
    (option,) = _options(cache, jars, spark=spark)
    return Path(option.strip('"')).stem


def _archive(cache: Path, name: str) -> Path:
    path = cache / classes.FOLDER / f"{name}.jsa"
    path.write_bytes(b"")
    path.chmod(0o400)
    return path


def test_a_jvm_without_an_archive_writes_down_its_classes_and_one_with_it_uses_it(tmp_path: Path) -> None:
    name = _name(tmp_path)
    assert _options(tmp_path) == (f'"-XX:DumpLoadedClassList={tmp_path}/scratch/{name}.lst"',)

    archive = _archive(tmp_path, name)

    assert _options(tmp_path)[0] == f'"-XX:SharedArchiveFile={archive}"'


def test_an_archive_is_for_one_java_one_class_path_and_one_set_of_options(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    before = _name(tmp_path, (jar,))
    jar.write_bytes(b"22")
    others = [SPARK.model_copy(update={"driver_memory": "40g"}), SPARK.model_copy(update={"java_options": "-Da=b"})]

    names = [
        before,
        _name(tmp_path, (jar,)),
        _name(tmp_path),
        *(_name(tmp_path, (jar,), spark=each) for each in others),
    ]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mode", [0o420, 0o402])
def test_an_archive_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    _archive(tmp_path, _name(tmp_path)).chmod(mode)

    assert _options(tmp_path) == ()


def test_an_archive_in_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    _archive(tmp_path, _name(tmp_path)).parent.chmod(0o777)

    assert _options(tmp_path) == ()


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    assert classes.options(SPARK, (), tmp_path / "scratch", tmp_path / "file") == ()


def test_a_jar_that_is_not_there_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert _options(tmp_path, (tmp_path / "none.jar",)) == ()


@pytest.mark.parametrize("chosen", ["-Xshare:off", "-XX:SharedArchiveFile=/a.jsa", "-javaagent:a.jar"])
def test_whoever_has_a_word_on_archives_in_his_java_options_has_it_his_way(tmp_path: Path, chosen: str) -> None:
    assert _options(tmp_path, spark=SPARK.model_copy(update={"java_options": chosen})) == ()


def _prepared(cache: Path, class_path: str) -> tuple[Path, Path]:
    """What a service leaves for the making of an archive: its folder, and where the archive is to be."""
    folder = cache / classes.FOLDER
    here = folder / "making"
    here.mkdir(parents=True)
    arguments = [java(), "-Xmx64m", "-Dport=1", "-cp", class_path]
    (here / "command.json").write_text(json.dumps(arguments))
    listing = f"-XX:DumpLoadedClassList={here / 'classes.lst'}"
    subprocess.run([java(), listing, "-XX:-UsePerfData", "-version"], check=True, capture_output=True)
    return here, folder / "0123456789abcdef.jsa"


def test_an_archive_is_made_that_a_jvm_takes(tmp_path: Path) -> None:
    here, archive = _prepared(tmp_path, "")

    classes.make(here, archive)

    assert not here.exists()
    with_it = [java(), "-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-cp", "", "-version"]
    subprocess.run(with_it, check=True, capture_output=True)


def _aged(path: Path, seconds: float) -> Path:
    """Let a file look as if it was last written or used some seconds ago."""
    at_s = path.stat().st_mtime - seconds
    os.utime(path, (at_s, at_s))
    return path


def test_an_archive_that_cannot_be_made_is_tried_again_after_a_day(tmp_path: Path) -> None:
    name = _name(tmp_path)
    here, _ = _prepared(tmp_path, "")
    (here / "command.json").write_text(json.dumps(["/bin/sh", "-c", "echo no; exit 1", "-cp", ""]))
    archive = tmp_path / classes.FOLDER / f"{name}.jsa"

    classes.make(here, archive)

    assert not here.exists()
    assert not archive.exists()
    assert _options(tmp_path) == ()
    _aged(archive.with_suffix(".none"), 25 * 3600)
    assert _name(tmp_path) == name


def test_the_archives_used_last_are_kept(tmp_path: Path) -> None:
    here, archive = _prepared(tmp_path, "")
    others = [_aged(_archive(tmp_path, str(hour)), hour * 3600) for hour in range(1, 6)]
    used = _aged(_archive(tmp_path, _name(tmp_path)), 9 * 3600)
    assert _options(tmp_path)  # uses it
    gone = archive.with_name("gone.jsa")
    gone.symlink_to("nowhere")
    os.utime(gone, (0, 0), follow_symlinks=False)

    classes.make(here, archive)

    assert set(archive.parent.glob("*.jsa")) == {archive, used, *others[:2]}


def test_an_archive_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    here, archive = _prepared(tmp_path, "")
    archive.write_bytes(b"it")

    classes.make(here, archive)

    assert archive.read_bytes() == b"it"
    assert not here.exists()


@pytest.mark.parametrize(
    ("most", "used", "inactive", "has"),
    [
        pytest.param("max", 0, 0, True, id="no limit"),
        pytest.param(str(3 * GIB), GIB, 0, True, id="two GiB left"),
        pytest.param(str(3 * GIB), 2 * GIB, 0, False, id="one GiB left"),
        pytest.param(str(3 * GIB), 2 * GIB, GIB, True, id="one GiB left, and one of files read long ago"),
    ],
)
def test_nothing_is_made_where_the_container_is_short_of_memory(
    tmp_path: Path, most: str, used: int, inactive: int, has: bool
) -> None:
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")

    assert classes.has_room(tmp_path, tmp_path) is has
