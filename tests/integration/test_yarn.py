"""The line of submit-args runs the service on a real YARN, whose node has only Python and Java."""

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.ledger_list import every_ledger
from tests.integration.conftest import Deploy, killed_at_the_end, leak, new_topic, payload
from tests.integration.installation import BARE, run
from tests.integration.yarn import yarn

pytestmark = [pytest.mark.cluster, pytest.mark.long]

_SIZE = ("spark.executor.memory=1g", "spark.executor.instances=2", "spark.executor.cores=3")


@pytest.fixture
def line_for(installed: Path, dist: Path) -> Callable[[Path, str], str]:
    """Return a function that returns the line of `ledger-reaper submit-args` for a configuration and a deploy mode."""
    size = [word for option in _SIZE for word in ("--conf", option)]

    def line(config: Path, mode: str) -> str:
        chosen = ["--master", "yarn", "--deploy-mode", mode, "--dist", str(dist), *size, "--", "run", "--until-idle"]
        reaper = installed / "venv" / "bin" / "ledger-reaper"
        return run(reaper, "submit-args", "--config", str(config), *chosen, env=BARE | {"HOME": str(config.parent)})

    return line


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_the_service_runs_on_yarn_in_both_deploy_modes(
    cluster: Cluster, deploy: Deploy, line_for: Callable[[Path, str], str], tmp_path: Path, mode: str
) -> None:
    service, topic, log = deploy(), new_topic("yarn"), tmp_path / "submit.log"
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 40)
    service.request([b"no request", *(payload(topic, ledger_id) for ledger_id in leaked)])

    with yarn(tmp_path / "yarn") as hadoop:
        with log.open("wb") as out:
            submission = subprocess.Popen(
                ["bash", "-c", line_for(service.config, mode)],
                env=hadoop.submit_environment(),
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with killed_at_the_end(submission):
            code = submission.wait(900)
        output = f"{log.read_text(errors='replace')[-4000:]}\n{hadoop.output()[-6000:]}"
        assert code == 0, output
        assert "final status: SUCCEEDED" in log.read_text() or mode == "client", output
        assert len(hadoop.attempts()) == 1, output

    assert Counter(outcome for outcome, _ in service.outcomes().elements()) == {"DELETED": 40, "DEAD_LETTER": 1}
    assert set(leaked).isdisjoint(every_ledger(cluster))
