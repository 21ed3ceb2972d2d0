"""The spark-submit line: what it says for each kind of master, and that it never says a secret."""

import itertools
import sys
from pathlib import Path

import pytest

from streaming.config.load import CONF, load
from streaming.errors import ConfigError
from streaming.spark.installed import has_connector
from streaming.spark.submission import IMAGE_HOME, Submission, arguments, needs, secret_files
from tests.combinations import with_source

JAR = Path("/dist/jars/connector.jar")
STANDALONE, YARN, KUBERNETES = "spark://head:7077", "yarn", "k8s://https://head"


def wanted(folder: Path, master: str, text: str = "", **chosen: object) -> Submission:
    config = folder / "config.toml"
    config.write_text(
        '[state]\ndir = "/shared/state"\n[checkpoints]\ndir = "/shared/checkpoints"\n'
        '[pulsar]\nadmin_url = "https://pulsar"\ntoken_file = "/etc/secrets/token"\n'
        f'[zookeeper]\ndigest_file = "/etc/secrets/digest"\n{text}'
    )
    (folder / "environment.tar.gz").touch()
    chosen = {"dist": folder} | chosen
    return Submission(settings=load(config), config=config, jars=[JAR], master=master, **chosen)  # type: ignore[arg-type]


def options(line: list[str]) -> dict[str, str]:
    """Options by name; properties by key."""
    found = {name: value for name, value in itertools.pairwise(line) if name.startswith("--")}
    properties = (value for name, value in itertools.pairwise(line) if name == "--conf")
    return found | dict(each.split("=", 1) for each in properties)


def test_on_a_cluster_nothing_says_where_the_driver_listens_unless_the_caller_does(tmp_path: Path) -> None:
    line = arguments(wanted(tmp_path, STANDALONE), {})
    assert next(word for word in line if "=" not in word and word != "env").endswith("/bin/spark-submit")
    assert [each for each in line if "SPARK_LOCAL_IP" in each or "spark.driver.host" in each or "bindA" in each] == []
    told = arguments(wanted(tmp_path, STANDALONE, driver_host="10.0.0.7"), {})
    # of the UI; Spark takes the driver's from the next two
    assert "SPARK_LOCAL_IP=127.0.0.1" in told[: told.index("--master")]
    assert options(told)["spark.driver.host"] == options(told)["spark.driver.bindAddress"] == "10.0.0.7"


def test_workers_get_the_packed_environment_and_the_driver_keeps_this_python(tmp_path: Path) -> None:
    said = options(arguments(wanted(tmp_path, STANDALONE), {}))
    assert said["--archives"] == f"{tmp_path}/environment.tar.gz#environment"
    if has_connector():
        assert said["spark.pyspark.python"] == "./environment/bin/python"
    assert Path(said["spark.pyspark.driver.python"]).is_absolute()
    assert said["spark.python.daemon.module"] == "streaming.spark.worker_daemon"
    assert said["--jars"] == str(JAR)


@with_source
@pytest.mark.parametrize(
    ("master", "image", "folder"),
    [(STANDALONE, "", "environment/bin"), (KUBERNETES, "reaper:1", f"{IMAGE_HOME}/venv/bin")],
)
def test_a_driver_outside_of_the_cluster_and_its_workers_find_python_by_one_name(
    tmp_path: Path, master: str, image: str, folder: str
) -> None:
    """Spark starts our source with the same words in the driver and in the executors."""
    line = arguments(wanted(tmp_path, master, image=image), {"PATH": "/opt/java/bin"})
    said = options(line)
    python = Path(sys.executable)
    assert said["spark.pyspark.python"] == python.name
    assert f"PATH={python.parent}:/opt/java/bin" in line[: line.index("--master")]
    assert said["spark.executorEnv.PATH"].startswith(f"{folder}:/usr/local/")
    within = arguments(wanted(tmp_path, KUBERNETES, image="reaper:1", deploy_mode="cluster"), {})
    assert options(within)["spark.pyspark.python"] == f"{IMAGE_HOME}/venv/bin/python"
    assert [word for word in within if "PATH=" in word] == []


def test_a_local_master_needs_no_environment_and_has_its_ui_where_the_configuration_says(tmp_path: Path) -> None:
    line = arguments(wanted(tmp_path, "local[2]", dist=Path("nowhere")), {})
    assert line[:2] == ["env", "SPARK_LOCAL_IP=127.0.0.1"]
    assert "--archives" not in line
    assert line[-3:] == ["run", "--config", str(tmp_path / "config.toml")]


def test_a_driver_in_the_cluster_gets_the_configuration_and_python_from_what_is_shipped(tmp_path: Path) -> None:
    line = arguments(wanted(tmp_path, YARN, deploy_mode="cluster", command=("run", "--until-idle")), {})
    said = options(line)
    assert said["--files"] == f"{tmp_path}/config.toml,{CONF}/log4j2.properties"
    assert said["spark.pyspark.driver.python"] == said["spark.pyspark.python"] == "./environment/bin/python"
    assert line[-4:] == ["run", "--until-idle", "--config", "config.toml"]
    assert "configurationFile=log4j2.properties" in said["--driver-java-options"]
    assert not line[0].startswith("env")


def test_on_kubernetes_all_comes_from_the_image_and_secrets_are_mounted_where_the_configuration_names_them(
    tmp_path: Path,
) -> None:
    chosen = {"image": "reaper:1", "secret": "reaper-secrets", "dist": Path("nowhere")}
    said = options(arguments(wanted(tmp_path, KUBERNETES, **chosen), {}))  # type: ignore[arg-type]
    assert said["--jars"] == f"local://{IMAGE_HOME}/jars/connector.jar"
    if has_connector():
        assert said["spark.pyspark.python"] == f"{IMAGE_HOME}/venv/bin/python"
    assert said["spark.kubernetes.container.image"] == "reaper:1"
    assert said["spark.kubernetes.executor.secrets.reaper-secrets"] == "/etc/secrets"
    assert "spark.kubernetes.driver.secrets.reaper-secrets" not in said
    distant = arguments(wanted(tmp_path, KUBERNETES, deploy_mode="cluster", **chosen), {})  # type: ignore[arg-type]
    assert options(distant)["spark.kubernetes.driver.secrets.reaper-secrets"] == "/etc/secrets"
    assert (
        f"local://{IMAGE_HOME}/venv/lib/python3.{sys.version_info.minor}/site-packages/streaming/__main__.py" in distant
    )


@pytest.mark.parametrize(
    "given",
    [
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY=x",
        "spark.executorEnv.AWS_ACCESS_KEY_ID=x",
        "spark.hadoop.fs.s3a.access.key=x",
        "spark.hadoop.fs.s3a.secret.key=x",
        "spark.executorEnv.PULSAR_TOKEN=x",
        "spark.ssl.keyPassword=x",
        "spark.kubernetes.driverEnv.AWS_SECRET_ACCESS_KEY=x",
        "spark.kubernetes.authenticate.submission.oauthToken=x",
        "spark.kubernetes.authenticate.driver.oauthToken=x",
        "spark.kubernetes.driver.annotation.password=x",
    ],
)
def test_a_property_that_would_show_a_secret_is_refused_without_being_shown(tmp_path: Path, given: str) -> None:
    key, _, _ = given.partition("=")
    with pytest.raises(ConfigError, match=f"{key}: Spark's UI and lists of processes") as refused:
        arguments(wanted(tmp_path, STANDALONE, conf=[f"{key}=hidden-value"]), {})
    assert "hidden-value" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        "-Djavax.net.ssl.keyStorePassword=hidden-value",
        "-Xss8m -Dpulsar.token=hidden-value -Da=b",
        "-javaagent:/opt/agent.jar=port=1,token=hidden-value",
        "'-Dmy.secret.key=hidden-value'",
    ],
)
@pytest.mark.parametrize("key", ["spark.driver.extraJavaOptions", "spark.executorEnv.JAVA_TOOL_OPTIONS", ""])
def test_a_secret_among_the_options_of_java_is_refused_without_being_shown(
    tmp_path: Path, key: str, value: str
) -> None:
    given = {"conf": [f"{key}={value}"]} if key else {"text": f'[spark]\njava_options = "{value}"\n'}
    with pytest.raises(ConfigError, match=f"{key or 'spark.java_options'}: .* in its value: .* in a file") as refused:
        arguments(wanted(tmp_path, STANDALONE, **given), {})
    assert "hidden-value" not in str(refused.value)


@pytest.mark.parametrize("given", ["spark.ssl.keyPassword hidden-value", "spark.ssl.keyPassword:hidden-value"])
def test_what_is_no_property_at_all_is_not_shown_either(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match=r"--conf takes key=value, not spark\.ssl\.keyPassword") as refused:
        arguments(wanted(tmp_path, STANDALONE, conf=[given]), {})
    assert "hidden-value" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY=aws:key",
        "spark.kubernetes.driver.secrets.aws-credentials=/etc/secrets",
        "spark.kubernetes.container.image.pullSecrets=of-the-registry",
        "spark.kubernetes.authenticate.submission.oauthTokenFile=/etc/secrets/token",
        "spark.authenticate.secret.file=/etc/secrets/spark",
        "spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE=/etc/secrets/token",
        "spark.executor.extraJavaOptions=-Djavax.net.ssl.keyStore=/etc/secrets/store -Dmy.passwordFile=/etc/secrets/p",
        "spark.kubernetes.executor.podTemplateFile=/etc/secrets/executor.yaml",
    ],
)
def test_where_a_secret_is_and_what_it_is_called_is_no_secret(tmp_path: Path, given: str) -> None:
    line = arguments(wanted(tmp_path, KUBERNETES, image="reaper:1", conf=[given]), {})
    assert given in line


def test_no_secret_of_the_environment_gets_into_the_line_and_the_path_of_a_profile_file_does(tmp_path: Path) -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "hidden-value",
        "AWS_SESSION_TOKEN": "hidden-value",
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/secrets/aws",
    }
    line = arguments(wanted(tmp_path, STANDALONE), environment)
    assert "hidden-value" not in " ".join(line)
    assert options(line)["spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE"] == "/etc/secrets/aws"


def test_the_files_that_every_host_needs_are_those_that_the_configuration_names(tmp_path: Path) -> None:
    settings = wanted(tmp_path, STANDALONE, '[tiered_storage]\ncredentials_file = "/etc/aws"\n').settings
    assert secret_files(settings) == ["/etc/secrets/token", "/etc/secrets/digest", "/etc/aws"]


@pytest.mark.parametrize(
    ("master", "chosen", "fault"),
    [
        (STANDALONE, {"dist": Path("nowhere")}, "make dist"),
        (STANDALONE, {"deploy_mode": "cluster"}, "no deploy mode cluster for Python"),
        ("local[2]", {"deploy_mode": "cluster"}, "no deploy mode cluster for Python"),
        (YARN, {"deploy_mode": "both"}, "client or cluster"),
        (YARN, {"image": "reaper:1"}, "are for Kubernetes"),
        (KUBERNETES, {"dist": Path("nowhere")}, r"options:\n  Kubernetes needs a container image: --image$"),
        (STANDALONE, {"conf": ["spark.executor.memory"]}, "key=value"),
    ],
)
def test_what_can_not_work_is_refused(tmp_path: Path, master: str, chosen: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        arguments(wanted(tmp_path, master, **chosen), {})  # type: ignore[arg-type]


def said(wanted: Submission) -> str:
    return "\n".join(needs(wanted))


def test_who_runs_it_elsewhere_is_told_what_hosts_need_and_nobody_else_is(tmp_path: Path) -> None:
    assert said(wanted(tmp_path, "local[2]")) == ""
    on_disk = said(wanted(tmp_path, YARN))
    assert "must reach the same folder at state.dir, /shared/state" in on_disk
    assert "needs this file: /etc/secrets/token" in on_disk
    assert "checkpoints.dir" not in on_disk  # they are the driver's, which is here
    assert "S3" not in on_disk
    distant = said(wanted(tmp_path, YARN, deploy_mode="cluster"))
    assert "the driver may run must reach the same folder at checkpoints.dir, /shared/checkpoints" in distant


def test_state_on_s3_needs_credentials_and_no_folder(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[state]\ndir = "s3://bucket/state"\n[checkpoints]\ndir = "s3://bucket/checkpoints"\n'
        '[pulsar]\nadmin_url = "https://pulsar"\n'
    )
    told = said(Submission(settings=load(config), config=config, jars=[JAR], master=YARN, deploy_mode="cluster"))
    assert told == "Every host needs credentials for S3 where AWS's tools read them: in its environment, or in a file"


def test_secrets_in_two_folders_can_not_be_one_mounted_secret(tmp_path: Path) -> None:
    apart = '[tiered_storage]\ncredentials_file = "/etc/aws"\n'
    with pytest.raises(ConfigError, match="all in one folder"):
        arguments(wanted(tmp_path, KUBERNETES, apart, image="reaper:1", secret="s"), {})


def test_a_driver_in_the_cluster_is_not_left_with_paths_and_variables_of_this_machine(tmp_path: Path) -> None:
    relative = wanted(tmp_path, YARN, '[spark]\nlocal_dir = "scratch"\n', deploy_mode="cluster")
    with pytest.raises(ConfigError) as refused:
        arguments(relative, {"LEDGER_REAPER__SERVICE__NAME": "other"})
    assert "spark.local_dir scratch: " in str(refused.value)
    assert "LEDGER_REAPER__SERVICE__NAME: " in str(refused.value)
