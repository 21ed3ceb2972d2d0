"""Whose option wins under spark-submit: spark-submit's, unless it contradicts what makes our jobs safe."""

from pathlib import Path

import pytest

from streaming.config.load import CONF, load
from streaming.errors import ConfigError
from streaming.spark import s3a
from streaming.spark.session import NEEDED
from streaming.spark.submitted import FIXED, chosen, completed, is_yarns, listen_on


def test_what_was_given_is_not_set_again_and_what_was_not_given_is_ours() -> None:
    ours = NEEDED | chosen(load(None).spark, {})
    given = {"spark.master": "local[4]", "spark.ui.port": "4123", "spark.scheduler.mode": "FIFO"}
    set_beside = completed(ours, given)
    assert not given.keys() & set_beside.keys()
    assert {key: set_beside[key] for key in ours.keys() - given.keys()} == {
        key: value for key, value in ours.items() if key not in given
    }


@pytest.mark.parametrize("key", FIXED)
def test_a_contradiction_to_what_makes_our_jobs_safe_is_refused_and_the_same_value_is_not(
    key: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[checkpoints]\ndir = "s3a://bucket/folder"\n[s3]\nendpoint = "https://minio"')
    ours = NEEDED | s3a.spark_conf(load(config))
    assert key not in completed(ours, {key: ours[key].upper()})
    with pytest.raises(ConfigError) as refused:
        completed(ours, {key: "another"})
    assert f"{key}=another, and not {ours[key]}: {FIXED[key]}" in str(refused.value)


@pytest.mark.parametrize("option", ["endpoint", "endpoint.region"])
def test_an_option_of_one_bucket_does_not_send_spark_to_another_store(option: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[checkpoints]\ndir = "s3a://bucket/folder"')
    key = f"spark.hadoop.fs.s3a.bucket.bucket.{option}"
    with pytest.raises(ConfigError, match=key):
        completed(NEEDED | s3a.spark_conf(load(config)), {key: "https://another"})
    assert key not in completed(NEEDED, {key: "https://another"})  # checkpoints on a disk: it is none of our business


def test_every_contradiction_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        completed(NEEDED, {"spark.speculation": "true", "spark.sql.session.timeZone": "Europe/Berlin"})
    assert "spark.speculation=true" in str(refused.value)
    assert "spark.sql.session.timeZone=Europe/Berlin" in str(refused.value)


@pytest.mark.parametrize(
    ("master", "host"), [("local[*]", "127.0.0.1"), ("spark://head:7077", None), ("k8s://https://head", None)]
)
def test_only_a_local_master_keeps_the_driver_on_the_loopback_address(master: str, host: str | None) -> None:
    assert completed(NEEDED, {"spark.master": master}).get("spark.driver.host") == host


def test_the_properties_file_for_spark_submit_has_what_our_jobs_rely_on() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    given = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert {key: given.get(key) for key in NEEDED} == NEEDED


@pytest.mark.parametrize(
    ("address", "environment", "expected"),
    [
        ("127.0.0.1", {}, {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}),
        (
            "10.0.0.7",
            {"SPARK_LOCAL_IP": "0.0.0.0", "SPARK_PUBLIC_DNS": "reaper"},
            {"SPARK_LOCAL_IP": "10.0.0.7", "SPARK_PUBLIC_DNS": "reaper"},
        ),
        ("0.0.0.0", {"SPARK_LOCAL_IP": "10.0.0.7"}, {}),
        ("::", {}, {}),
    ],
)
def test_a_jvm_of_our_own_listens_where_the_configuration_says(
    address: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    listen_on(address, environment)
    assert environment == expected


def test_a_jvm_that_would_listen_on_every_address_has_no_ui_unless_that_was_asked_for() -> None:
    spark = load(None).spark
    assert chosen(spark, {})["spark.ui.enabled"] == "false"
    assert completed(chosen(spark, {}), {"spark.ui.enabled": "true"}).get("spark.ui.enabled") is None
    assert "spark.ui.enabled" not in chosen(spark, {"SPARK_LOCAL_IP": "127.0.0.1"})
    assert "spark.ui.enabled" not in chosen(spark.model_copy(update={"ui_address": "0.0.0.0"}), {})


@pytest.mark.parametrize(
    ("master", "mode", "expected"),
    [
        pytest.param("yarn", "cluster", True, id="the application master has the driver inside"),
        pytest.param("yarn", "client", False, id="the driver is spark-submit's own JVM"),
        pytest.param("k8s://https://head", "client", False, id="the driver's pod starts spark-submit too"),
        pytest.param(None, None, False, id="nothing is known"),
    ],
)
def test_only_yarn_ends_a_drivers_jvm_by_itself(master: str | None, mode: str | None, expected: bool) -> None:
    properties = {"spark.master": master, "spark.submit.deployMode": mode}
    assert is_yarns(properties.get) is expected
