"""Builds the command line of spark-submit for a configuration: on one machine, or on a cluster with `make dist`.

1. Workers have Spark, Java and the driver's version of Python. The archive (or the image) contains everything else,
   and no task needs any file of the driver's disk.
2. A secret is never part of the line, and never a property of Spark, which its UI shows.
3. The line sets the address on which the driver listens only for a local master, or if the caller names the address.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from streaming.config.load import CONF
from streaming.config.sections import path_keys
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.errors import ConfigError
from streaming.spark.installed import has_connector
from streaming.spark.submitted import EVERYWHERE, JAVA_OPTIONS, is_local
from streaming.spark.worker_daemon import __name__ as _DAEMON

ENVIRONMENT = "environment.tar.gz"  # deploy/dist.sh creates it
IMAGE_HOME = "/opt/ledger-reaper"  # where deploy/Dockerfile installs
_UNPACKED = "environment"
_APPLICATION = Path(__file__).parents[1] / "__main__.py"
_LOG = "log4j2.properties"
_KUBERNETES = "k8s://"
_WORDS = r"(?:secret|password|passwd|token|credential|access[._]?key)"
_LOOKS_SECRET = re.compile(_WORDS, re.IGNORECASE)
_SETS_A_SECRET = re.compile(rf"(?P<name>{_WORDS}[\w.-]*)=", re.IGNORECASE)  # in options of Java, or of its agents
# These contain the path of a secret, or its name in Kubernetes, but no secret.
_NAMES_A_FILE = re.compile(
    r".*(?:File|\.file|_FILE)"
    r"|spark\.kubernetes\.(?:driver|executor)\.(?:secrets|secretKeyRef)\..+"
    r"|spark\.kubernetes\.container\.image\.pullSecrets"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROFILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CREDENTIAL_PROFILES_FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The caller's choices."""

    settings: Settings
    config: Path  # the file of the settings
    jars: Sequence[Path]
    master: str
    deploy_mode: str = "client"
    dist: Path = Path("dist")  # the folder that deploy/dist.sh built
    image: str = ""  # a container image with everything that dist contains, for Kubernetes
    secret: str = ""  # the Kubernetes secret whose keys are the files of secret_files()
    driver_host: str = ""  # the address at which executors reach the driver; "": Spark's choice
    conf: Sequence[str] = ()  # further properties of Spark
    command: Sequence[str] = ("run",)

    @property
    def is_local(self) -> bool:
        """Whether the executors are threads of the driver."""
        return is_local(self.master)

    @property
    def in_cluster(self) -> bool:
        """Whether the driver also runs on a host of the cluster."""
        return self.deploy_mode == "cluster"


def secret_files(settings: Settings) -> list[str]:
    """Return the files with credentials and certificates that driver and executors read."""
    sections = (getattr(settings, name) for name in type(settings).model_fields)
    values = (getattr(section, key) for section in sections for key in path_keys(type(section)) if "_file" in key)
    return [value for value in values if value]


def needs(submission: Submission) -> Iterator[str]:
    """Yield sentences about what hosts need besides the command line and the folder of `make dist`."""
    if submission.is_local:
        return
    settings = submission.settings
    if not is_on_s3(settings.state.dir):
        yield f"Every host must reach the same folder at state.dir, {settings.state.dir}"
    if submission.in_cluster and not is_on_s3(settings.checkpoints.dir):
        folder = settings.checkpoints.dir
        yield f"Every host where the driver may run must reach the same folder at checkpoints.dir, {folder}"
    if is_on_s3(settings.state.dir) or is_on_s3(settings.checkpoints.dir):
        yield "Every host needs credentials for S3 where AWS's tools read them: in its environment, or in a file"
    # executors read secrets where the driver does: in the files that the configuration names
    for path in [] if submission.secret else secret_files(settings):
        yield f"Every host needs this file: {path}"


def arguments(submission: Submission, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command line. Raises ConfigError for options that can't work or would show a secret."""
    if faults := list(_faults(submission, environment)):
        raise ConfigError("\n".join(["no command line for these options:", *(f"  {fault}" for fault in faults)]))
    application = (
        f"local://{_in_image(_APPLICATION)}" if submission.image and submission.in_cluster else str(_APPLICATION)
    )
    config = submission.config.name if submission.in_cluster else str(submission.config.absolute())
    return [
        *_variables(submission, environment),
        _spark_submit(environment),
        *("--master", submission.master, "--deploy-mode", submission.deploy_mode),
        *("--name", f"ledger-reaper {submission.settings.service.name}"),
        *("--properties-file", str(CONF / "spark-defaults.conf")),
        *("--driver-memory", submission.settings.spark.driver_memory),
        *("--driver-java-options", _java_options(submission)),
        *_files(submission),
        *(part for key, value in _conf(submission, environment).items() for part in ("--conf", f"{key}={value}")),
        *(part for setting in submission.conf for part in ("--conf", setting)),
        application,
        *submission.command,
        *("--config", config),
    ]


def _faults(submission: Submission, environment: Mapping[str, str]) -> Iterator[str]:
    if submission.deploy_mode not in ("client", "cluster"):
        yield f"the deploy mode is client or cluster, not {submission.deploy_mode}"
    if submission.in_cluster and (submission.is_local or submission.master.startswith("spark://")):
        yield f"Spark has no deploy mode cluster for Python on {submission.master}"
    needs_none = submission.is_local or submission.image or submission.master.startswith(_KUBERNETES)
    if not (needs_none or (submission.dist / ENVIRONMENT).is_file()):
        missing = f"{submission.dist} has no {ENVIRONMENT} for the workers"
        yield f"{missing}: build it with `make dist`, and name it with --dist"
    yield from _faults_of_kubernetes(submission)
    yield from _faults_of_a_value("spark.java_options", submission.settings.spark.java_options)
    for setting in submission.conf:
        yield from _faults_of_a_property(*setting.split("=", 1))
    if submission.in_cluster:
        yield from _faults_of_a_remote_driver(submission.config, environment)


def _faults_of_kubernetes(submission: Submission) -> Iterator[str]:
    if submission.master.startswith(_KUBERNETES):
        if not submission.image:
            yield "Kubernetes needs a container image: --image"
        if submission.secret and len({Path(file).parent for file in secret_files(submission.settings)}) != 1:
            yield "--secret needs the configuration to name files for its secrets, all in one folder"
    elif submission.image or submission.secret:
        yield f"--image and --secret are for Kubernetes, not for {submission.master}"


def _faults_of_a_property(key: str, value: str = "") -> Iterator[str]:
    if not value:
        name = re.split(r"[\s:]", key)[0]  # the rest may be a secret value
        yield f"--conf takes key=value, not {name}"
    elif _NAMES_A_FILE.fullmatch(key):
        return
    elif _LOOKS_SECRET.search(key):
        yield (
            f"{key}: Spark's UI and lists of processes would show its value; put it into a file that every host has, "
            "or into a secret of Kubernetes (--secret, or spark.kubernetes.executor.secretKeyRef.VARIABLE)"
        )
    else:
        yield from _faults_of_a_value(key, value)


def _faults_of_a_value(key: str, value: str) -> Iterator[str]:
    if any(not _NAMES_A_FILE.fullmatch(match["name"]) for match in _SETS_A_SECRET.finditer(value)):
        yield (
            f"{key}: Spark's UI and lists of processes would show an apparent secret in its value: keep such options "
            "of Java in a file that every host has, and write @ and its path instead"
        )


def _faults_of_a_remote_driver(config: Path, environment: Mapping[str, str]) -> Iterator[str]:
    own, defaults = (tomllib.loads(file.read_text(encoding="utf-8")) for file in (config, CONF / "default.toml"))
    for name, field in Settings.model_fields.items():
        for key in path_keys(field.annotation):
            value = {**defaults[name], **own.get(name, {})}[key]
            if value and "://" not in value and not Path(value).is_absolute():
                yield f"{name}.{key} {value}: the driver starts in a temporary folder; write the full path"
    for name in sorted(environment):
        if name.startswith("LEDGER_REAPER__"):
            yield f"{name}: a driver in the cluster does not get this variable; set it in the configuration"


def _variables(submission: Submission, environment: Mapping[str, str]) -> list[str]:
    """Return the environment of spark-submit's own JVM: where it finds Python, its UI's address, its scratch folder."""
    variables = {}
    spark = submission.settings.spark
    if _is_found_by_name(submission):
        variables["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', _PATH)}"
    # Spark also uses this address for the driver, unless spark.driver.host is set
    if spark.ui_address not in EVERYWHERE and (submission.is_local or submission.driver_host):
        variables["SPARK_LOCAL_IP"] = spark.ui_address
    if spark.local_dir:
        variables["SPARK_LOCAL_DIRS"] = spark.local_dir
    if is_on_s3(submission.settings.checkpoints.dir) and _PROFILES[0] in environment:
        variables[_PROFILES[1]] = environment[_PROFILES[0]]
    # in a cluster, a driver does not get the environment of spark-submit
    if submission.in_cluster or not variables:
        return []
    return ["env", *(f"{key}={value}" for key, value in variables.items())]


def _spark_submit(environment: Mapping[str, str]) -> str:
    # not bin/spark-submit of the Python environment, which asks any python3 on the PATH where Spark is
    home = environment.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return str(Path(home) / "bin" / "spark-submit")


def _java_options(submission: Submission) -> str:
    log = _LOG if submission.in_cluster and not submission.image else str(CONF / _LOG)
    log = _in_image(Path(log)) if submission.in_cluster and submission.image else log
    options = (
        *JAVA_OPTIONS,
        f'"-Dlog4j2.configurationFile={log}"',
        submission.settings.spark.java_options,
    )
    return " ".join(option for option in options if option)


def _files(submission: Submission) -> Iterator[str]:
    jars = [f"local://{IMAGE_HOME}/jars/{jar.name}" if submission.image else str(jar) for jar in submission.jars]
    if jars:
        yield from ("--jars", ",".join(jars))
    if not (submission.is_local or submission.image):
        yield from ("--archives", f"{(submission.dist / ENVIRONMENT).absolute()}#{_UNPACKED}")
    if submission.in_cluster:
        shipped = [submission.config.absolute()] + ([] if submission.image else [CONF / _LOG])
        yield from ("--files", ",".join(map(str, shipped)))


def _conf(submission: Submission, environment: Mapping[str, str]) -> dict[str, str]:
    if submission.is_local:
        return {"spark.pyspark.python": sys.executable, "spark.pyspark.driver.python": sys.executable}
    python = _workers_python(submission)
    conf = {
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": python if submission.in_cluster else sys.executable,
        "spark.python.daemon.module": _DAEMON,
    }
    if _is_found_by_name(submission):
        conf["spark.pyspark.python"] = Path(sys.executable).name
        conf["spark.executorEnv.PATH"] = f"{Path(python).parent}:{_PATH}"
    if submission.driver_host:
        conf["spark.driver.host"] = submission.driver_host
        conf["spark.driver.bindAddress"] = submission.driver_host
    if submission.image:
        conf["spark.kubernetes.container.image"] = submission.image
    if submission.secret:
        folder = Path(secret_files(submission.settings)[0]).parent
        for role in ("driver", "executor") if submission.in_cluster else ("executor",):
            conf[f"spark.kubernetes.{role}.secrets.{submission.secret}"] = str(folder)
    if _PROFILES[0] in environment:  # a path, and no secret
        conf[f"spark.executorEnv.{_PROFILES[0]}"] = environment[_PROFILES[0]]
    return conf


def _workers_python(submission: Submission) -> str:
    return f"{IMAGE_HOME}/venv/bin/python" if submission.image else f"./{_UNPACKED}/bin/python"


def _is_found_by_name(submission: Submission) -> bool:
    """Whether each host finds Python on its own PATH.

    Our source plans in the driver and reads in the executors, and Spark starts it with the same words on both. Where
    the driver's Python has another path, only a name without a path works.
    """
    is_elsewhere = not (submission.is_local or submission.in_cluster) and sys.executable != _workers_python(submission)
    return is_elsewhere and not has_connector()


def _in_image(path: Path) -> str:
    """Return the path in the image of a file of this installation."""
    packages = CONF.parent
    python = f"python3.{sys.version_info.minor}"  # the image has the same version
    return f"{IMAGE_HOME}/venv/lib/{python}/site-packages/{path.relative_to(packages)}"
