"""Compares topics, groups and offsets in the databases with the JSON files."""

from collections.abc import Iterator

from streaming.errors import SafetyError
from streaming.rocketmq.inspect.check_notes import shortened
from streaming.rocketmq.store.configuration import (
    DATABASES,
    LostOffsets,
    lost_offsets,
    other_database,
    read_databases,
    read_json,
    rows_of,
    unread_offsets,
)
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.staging import is_unopened, moved_of
from udfs.rocketmq import metadata as m
from udfs.rocketmq.compare import Finding, FindingKind


def check_configuration(paths: StorePaths) -> tuple[list[Finding], list[str]]:
    """Compare the configuration's databases with the JSON files: return findings, and notes about newer entries."""
    configuration, databases = read_json(paths), read_databases(paths.config)
    findings, notes = list[Finding](), list[str]()
    findings += _of_another_database(paths)
    findings += _of_unread_offsets(paths, databases[m.OFFSETS])
    for database in DATABASES:
        expected, current = rows_of(database, configuration.tables[database]), databases[database]
        file = configuration.files[database]
        counter, file_counter = _counter(paths, database, current), (m.counter_of(expected) or 0) - 1
        if counter is None or counter < file_counter:
            text = f"the version of {database} is {counter}, so a broker would overwrite its rows from {file}"
            findings.append(_config_finding(text, 1))
        missing = [name for name in expected.default if name not in current.default]
        other = [name for name, value in expected.default.items() if current.default.get(name, value) != value]
        other += [name for name, value in expected.forbidden.items() if current.forbidden.get(name) != value]
        if is_unopened(paths, database):
            if missing or other:
                text = f"entries of {file} are missing from {database}, or differ: {shortened([*missing, *other])}"
                findings.append(_config_finding(text, len(missing) + len(other)))
        elif missing or other:
            notes.append(
                f"a broker has worked with {database}, so {file} is older, and has earlier values of "
                f"{shortened([*missing, *other])}"
            )
    if not is_unopened(paths, m.OFFSETS):
        findings += _of_offsets(lost_offsets(configuration, databases), is_converted=moved_of(paths) is not None)
    return findings, notes


def _of_another_database(paths: StorePaths) -> Iterator[Finding]:
    unknown = other_database(paths)
    if unknown:
        text = (
            f"{unknown} is a database that this program does not know: a broker may read it instead of "
            f"{', '.join(DATABASES)}"
        )
        yield _config_finding(text, 1)


def _of_unread_offsets(paths: StorePaths, current: m.ConfigRows) -> Iterator[Finding]:
    unread = unread_offsets(paths)
    lost = [name for name in unread.names if name.encode() not in current.default] if unread else []
    if unread and lost:
        shown = shortened([name.encode() for name in lost])
        text = f"offsets of {unread.file}, the only file of offsets, are missing from {m.OFFSETS}: {shown}"
        yield _config_finding(text, len(lost))


def _counter(paths: StorePaths, database: str, rows: m.ConfigRows) -> int | None:
    try:
        return m.counter_of(rows)
    except m.BadTableError as error:
        raise SafetyError(f"{paths.config / database}: {error}") from error


def _of_offsets(lost: LostOffsets, *, is_converted: bool) -> Iterator[Finding]:
    """is_converted: a backfill wrote the offsets into the database, so those that are lower there were reset since."""
    lower = () if is_converted else lost.lower
    for fault, names in (("are missing from", lost.missing), ("are higher than in", lower)):
        if names:
            shown = shortened([name.encode() for name in names])
            yield _config_finding(f"offsets of the JSON file {fault} {m.OFFSETS}: {shown}", len(names))


def _config_finding(text: str, count: int) -> Finding:
    return Finding(topic=b"", queue_id=-1, kind=FindingKind.CONFIG, count=count, offset=-1, text=text)
