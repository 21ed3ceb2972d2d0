"""Durations and sizes as operators write them."""

import pytest

from streaming.config.amounts import bytes_of, duration_text, one_of, seconds_of, time_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent, Outcome, Reason


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), ("7d", 604_800), ("2W", 1_209_600)]
)
def test_durations_are_read_as_operators_write_them(text: str, seconds: int) -> None:
    assert seconds_of(text, "--watch") == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "1.5h", "6 hours"])
def test_an_invalid_duration_is_refused_with_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--watch"):
        seconds_of(text, "--watch")


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("1K", 1024), ("10M", 10 << 20), ("2GiB", 2 << 30), ("1 TB", 1 << 40)]
)
def test_sizes_are_read_as_operators_write_them(text: str, size: int) -> None:
    assert bytes_of(text, "--max-bytes") == size


@pytest.mark.parametrize("text", ["", "G", "-5", "1.5G", "10X"])
def test_an_invalid_size_is_refused_with_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-bytes"):
        bytes_of(text, "--max-bytes")


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", 10_000_000_000 - 7_200_000),
        ("1970-01-02", 86_400_000),
        ("1970-01-02T01:00", 90_000_000),
        ("1970-01-02 01:00:00+01:00", 86_400_000),
        ("1970-01-02T01:00:00Z", 90_000_000),
    ],
)
def test_a_time_is_how_long_ago_or_a_time_of_utc(text: str, at_ms: int) -> None:
    assert time_of(text, "--since", 10_000_000_000) == at_ms


@pytest.mark.parametrize(("seconds", "text"), [(0, "never"), (21_600, "6h"), (90, "90s"), (1_209_600, "2w")])
def test_a_duration_is_written_in_the_largest_exact_unit(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text
    assert seconds == 0 or seconds_of(text, "--for") == seconds


def test_an_enumerated_value_is_read_in_any_case() -> None:
    assert one_of("schema_storage", LedgerComponent, "--component") == "SCHEMA_STORAGE"
    assert one_of("FILE", ["file", "both"], "--store") == "file"


@pytest.mark.parametrize(
    ("text", "values", "page", "message"),
    [
        pytest.param(
            "delted",
            Outcome,
            "",
            "--o delted: no such value; did you mean DELETED? "
            "(choose one of DELETED, ALREADY_GONE, RETRY, DEAD_LETTER)",
            id="a few values are listed",
        ),
        pytest.param(
            "foo",
            Reason,
            "docs/reasons.md",
            "--o foo: no such value (docs/reasons.md explains all values)",
            id="many are not",
        ),
        pytest.param("", ["file", "both"], "", "--o '': no such value (choose one of file, both)", id="no text"),
    ],
)
def test_a_wrong_value_is_refused_with_the_values_that_exist(
    text: str, values: list[str], page: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        one_of(text, values, "--o", page=page)
    assert str(refused.value) == message
