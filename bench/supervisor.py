"""Runs the measured service: starts it again after each end, creates requests, and counts the rows of its tables."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from streaming.config.settings import Settings
from streaming.state.delta.delta_tables import opened

NOWHERE = 5 * 10**15  # above the ledger ids of any cluster
EXPECTED_ENDS = (
    0,
    3,
    -signal.SIGKILL,
)  # it was stopped; ZooKeeper or Pulsar did not answer for too long; it was killed
_POLL_S = 0.5
_STOP_S = 90


@dataclass
class Supervisor:
    """Starts the service again after each end, like systemd or Kubernetes."""

    config: Path
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    wanted: bool = True
    ends: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the service once."""
        command = [sys.executable, "-m", "streaming", "run", *arguments, "--config", str(self.config)]
        with self.log.open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, stop: threading.Event) -> None:
        """Keep the service running until stop is set."""
        while not stop.wait(_POLL_S):
            if self.wanted and (self.process is None or self.process.poll() is not None):
                if self.process is not None:
                    self._ended(self.process.returncode)
                self.process = self.start()

    def end(self, number: int) -> None:
        """Send the running service a signal and wait for its end; SIGKILL goes to all its processes."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number) if number == signal.SIGKILL else self.process.send_signal(number)
            self.process.wait(_STOP_S)

    def _ended(self, code: int) -> None:
        self.ends[code] += 1
        if code not in EXPECTED_ENDS:
            self.unexpected.append(f"the service ended with {code}: {self.log.read_text()[-3000:]}")


def payload(topic: str, ledger_id: int) -> bytes:
    """Return a request to delete a data ledger of the topic."""
    named = {"topicName": topic, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": ledger_id}
    return json.dumps(named).encode()


def rows_in(settings: Settings, name: str) -> int:
    """Count the rows of a table in the state directory; 0 if there is no table yet."""
    table = opened(settings.state.dir, name)
    return 0 if table is None else table.to_pyarrow_dataset().count_rows()
