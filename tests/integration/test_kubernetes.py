"""The line of submit-args lets Spark create pods of the image, whose executors work for the driver.

Kubernetes is a stand-in that starts each pod as a host with processes (kubernetes.py). Spark, the entrypoint and the
content of the image are real.
"""

import shlex
import subprocess
from pathlib import Path

import pytest

from streaming.spark.submission import IMAGE_HOME
from tests.integration.conftest import killed_at_the_end
from tests.integration.hosts import separate, until, why_not_separate
from tests.integration.installation import BARE, run
from tests.integration.kubernetes import Kubernetes, kubernetes

pytestmark = [pytest.mark.cluster, pytest.mark.long]

_JOB = """
import sys
from pathlib import Path
import pyarrow as pa
from streaming.config.load import load
from streaming.spark.session import Jars, end_jvm, start

def where(batches):
    import sys, streaming
    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"name": f"{sys.executable} {streaming.__file__}"}] * batch.num_rows)

spark = start(load(Path(sys.argv[1])), Jars(), with_streams=False)
rows = spark.range(1000).repartition(4).mapInArrow(where, "name string").collect()
print("rows", len(rows), "of", *{row["name"] for row in rows}, flush=True)
spark.stop()
end_jvm(0)
"""
_SOONER = ("spark.kubernetes.executor.enableApiWatcher=false", "spark.kubernetes.executor.apiPollingInterval=1s")
_SIZE = ("spark.executor.memory=1g", "spark.executor.instances=2", "spark.executor.cores=1")


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_executors_in_pods_work_for_a_driver_in_both_deploy_modes(installed: Path, tmp_path: Path, mode: str) -> None:
    if why := why_not_separate():
        pytest.skip(why)
    for name in ("hosts", "job", "uploads", "state"):
        (tmp_path / name).mkdir()
    job, config, log = tmp_path / "job" / "job.py", tmp_path / "config.toml", tmp_path / "submit.log"
    job.write_text(_JOB)
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    lent = {tmp_path / "job": "/job", tmp_path / "uploads": str(tmp_path / "uploads")}
    with separate(tmp_path / "hosts") as hosts, kubernetes(hosts, installed, tmp_path, lent) as cluster:
        in_pod = [] if mode == "cluster" else ["--driver-host", hosts.address]
        own = (f"file.upload.path=file://{tmp_path}/uploads", f"driver.master={cluster.master.removeprefix('k8s://')}")
        conf = (*_SOONER, *_SIZE, *(f"spark.kubernetes.{option}" for option in own))
        chosen = ["--master", cluster.master, "--deploy-mode", mode, "--image", "reaper:1", *in_pod]
        line = run(
            *(str(installed / "venv" / "bin" / "ledger-reaper"), "submit-args", "--config", str(config), *chosen),
            *(
                word
                for option in (*conf, "spark.kubernetes.submission.waitAppCompletion=false")
                for word in ("--conf", option)
            ),
            env=BARE | {"HOME": str(tmp_path)},
        )
        words = shlex.split(line)
        main = next(number for number, word in enumerate(words) if word.endswith("/streaming/__main__.py"))
        job_and_config = ["local:///job/job.py", "config.toml"] if mode == "cluster" else [str(job), str(config)]
        with log.open("wb") as out:
            submission = subprocess.Popen(
                [*words[:main], *job_and_config],
                env=BARE | {"HOME": str(tmp_path)},
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with killed_at_the_end(submission):
            assert submission.wait(600) == 0, log.read_text()[-4000:] + cluster.output()[-4000:]
            if mode == "cluster":
                _wait_for_the_driver(cluster, log)
        output = log.read_text() if mode == "client" else cluster.output()
        venv = f"{IMAGE_HOME}/venv"
        assert f"rows 1000 of {venv}/bin/python {venv}/lib/python3.11/site-packages/streaming/__init__.py" in output, (
            output
        )


def _wait_for_the_driver(cluster: Kubernetes, log: Path) -> None:
    (driver,) = [pod for pod in cluster.pods.values() if pod.spec["metadata"]["labels"]["spark-role"] == "driver"]
    until(lambda: driver.shown()["status"]["phase"] not in {"Pending", "Running"}, driver.log, 600)
    assert driver.shown()["status"]["phase"] == "Succeeded", cluster.output()[-6000:] + log.read_text()[-2000:]
