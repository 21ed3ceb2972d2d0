"""The service on a real YARN, whose node has Python and Java and nothing of ours, by the line of submit-args."""

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.ledger_list import every_ledger
from tests.integration.conftest import Deploy, killed_at_the_end, leak, new_topic, payload
from tests.integration.installation import BARE, done
from tests.integration.yarn import yarn

pytestmark = [pytest.mark.cluster, pytest.mark.long]

_SIZE = ("spark.executor.memory=1g", "spark.executor.instances=2", "spark.executor.cores=3")


@pytest.fixture
def line_for(installed: Path, dist: Path) -> Callable[[Path, str], str]:
    """What `ledger-reaper submit-args` prints for a configuration and a deploy mode."""
    size = [part for each in _SIZE for part in ("--conf", each)]

    def line(config: Path, mode: str) -> str:
        chosen = ["--master", "yarn", "--deploy-mode", mode, "--dist", str(dist), *size, "--", "run", "--until-idle"]
        reaper = installed / "venv" / "bin" / "ledger-reaper"
        return done(reaper, "submit-args", "--config", str(config), *chosen, env=BARE | {"HOME": str(config.parent)})

    return line


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_the_service_runs_on_yarn_wherever_its_driver_is(
    cluster: Cluster, deploy: Deploy, line_for: Callable[[Path, str], str], tmp_path: Path, mode: str
) -> None:
    service, topic, log = deploy(), new_topic("yarn"), tmp_path / "submit.log"
    topics.fill(cluster, topic, 2, ["s"])
    gone = leak(cluster, topic, 40)
    service.request([b"no request", *(payload(topic, each) for each in gone)])

    with yarn(tmp_path / "yarn") as there:
        with log.open("wb") as out:
            pasted = subprocess.Popen(
                ["bash", "-c", line_for(service.config, mode)],
                env=there.submitting(),
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with killed_at_the_end(pasted):
            code = pasted.wait(900)
        said = f"{log.read_text(errors='replace')[-4000:]}\n{there.said()[-6000:]}"
        assert code == 0, said
        assert "final status: SUCCEEDED" in log.read_text() or mode == "client", said
        assert len(there.attempts()) == 1, said

    assert Counter(outcome for outcome, _ in service.outcomes().elements()) == {"DELETED": 40, "DEAD_LETTER": 1}
    assert set(gone).isdisjoint(every_ledger(cluster))
