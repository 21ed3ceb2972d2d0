"""Runs BookKeeper's own shell on the sandbox, to check results with independent code."""

import re
import subprocess
from collections.abc import Sequence

from streaming.errors import ReaperError
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT
from streaming.sandbox.parts.launch import java_environment
from streaming.sandbox.parts.part_settings import metadata_service_uri

SHELL_SECONDS = 120
_MEMORY = "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=128m"
# The shell prints results as log lines: "<time> [main] INFO  ...ListLedgersCommand - ledgerID: 12". Since BookKeeper
# 4.18 values are in the line's context: "... - log entry {ledgerId=12}".
_LISTED = re.compile(r"ListLedgersCommand - (?:ledgerID: |.*\bledgerId=)(\d+)")


def run(cluster: Cluster, arguments: Sequence[str], *, check: bool = True) -> str:
    """Run `bookkeeper shell <arguments>` and return its output. Takes about 2 s, because a JVM starts.

    Raises ReaperError with the output if it fails and `check` is set.
    """
    conf = cluster.home.root / "conf" / "shell.conf"
    spec = cluster.spec
    conf.write_text(
        f"zkServers={cluster.addresses.zookeeper}\n"
        f"metadataServiceUri={metadata_service_uri(spec)}\n"
        f"zkLedgersRootPath={LEDGERS_ROOT}\n",
        encoding="utf-8",
    )
    scratch = cluster.home.root / "tmp" / "shell"
    scratch.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(cluster.pulsar / "bin" / "bookkeeper"), "shell", *arguments],
        env={**java_environment(cluster.home, scratch, _MEMORY, cluster.pulsar), "BOOKIE_CONF": str(conf)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SHELL_SECONDS,
        check=False,
    )
    text = done.stdout.decode("utf-8", errors="replace")
    if check and done.returncode != 0:
        raise ReaperError(f"bookkeeper shell {' '.join(arguments)} ended with {done.returncode}:\n{text[-2000:]}")
    return text


def list_ledgers(cluster: Cluster) -> set[int]:
    """Return the ids that `listledgers` prints."""
    return {int(number) for number in _LISTED.findall(run(cluster, ["listledgers"]))}


def ledger_metadata(cluster: Cluster, ledger_id: int) -> str:
    """Return the output of `ledgermetadata`. Raises ReaperError if the ledger does not exist."""
    return run(cluster, ["ledgermetadata", "-ledgerid", str(ledger_id)])


def can_read(cluster: Cluster, ledger_id: int, entry_id: int) -> bool:
    """Return whether `readledger` reads the entry."""
    try:
        text = read_ledger(cluster, ledger_id, entry_id, entry_id)
    except ReaperError:
        return False
    line = rf"Lid={ledger_id}, Eid={entry_id}, EntrySize=|entryId={entry_id}, entrySize=\d+, ledgerId={ledger_id}\b"
    return re.search(line, text) is not None


def read_ledger(cluster: Cluster, ledger_id: int, first_entry: int, last_entry: int) -> str:
    """Return the output of `readledger` for these entries. Raises ReaperError if they can't be read."""
    span = ["-fe", str(first_entry), "-le", str(last_entry)]
    return run(cluster, ["readledger", "-l", str(ledger_id), *span])
