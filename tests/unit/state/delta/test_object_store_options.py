"""deltalake uses the same store as pyarrow, overwrites no commit, and gets no secret."""

from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.state.delta.object_store_options import options_of, set_region
from streaming.state.filesystem import below, shown


@pytest.mark.parametrize(
    ("store", "endpoint", "region", "is_plain"),
    [
        pytest.param('endpoint = "http://10.0.0.1:9000"', "http://10.0.0.1:9000", "us-east-1", "true", id="a store"),
        pytest.param('region = "eu-west-3"', "https://s3.eu-west-3.amazonaws.com", "eu-west-3", "false", id="AWS"),
    ],
)
def test_a_table_on_s3_has_the_configured_location(
    tmp_path: Path, store: str, endpoint: str, region: str, is_plain: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "s3a://bucket/a/b/"\n[s3]\n{store}\n')
    table = below(load(file).state_dir, "receipts")

    assert shown(table) == "s3://bucket/a/b/receipts"
    assert options_of(table) == {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_ALLOW_HTTP": is_plain,
        "conditional_put": "etag",
        "AWS_FORCE_CREDENTIAL_LOAD": "true",
    }


def test_a_region_is_set_unless_one_is_configured() -> None:
    location = "s3://bucket/a?region=eu-west-3"
    nothing, region, default = dict[str, str](), {"AWS_REGION": "here"}, {"AWS_DEFAULT_REGION": "here"}
    for environment in (nothing, region, default):
        set_region(location, environment)
    assert (nothing, region, default) == (
        {"AWS_REGION": "eu-west-3"},
        {"AWS_REGION": "here"},
        {"AWS_DEFAULT_REGION": "here"},
    )
    set_region("/var/lib/state", default)


@pytest.mark.parametrize("location", ["/var/lib/state", "hdfs://namenode/state"])
def test_other_stores_need_no_options(location: str) -> None:
    assert options_of(below(location, "receipts")) is None
    assert below(location, "receipts") == f"{location}/receipts"
