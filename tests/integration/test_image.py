"""The output of deploy/install.sh in a container: a user without rights, and a read-only root file system.

This module builds no image. It mounts the folder below a read-only root directory, beside this machine's system, and
the image's volumes as in docs/deploying.md.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.installation import ROOT

_MAY = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.skipif(not _MAY, reason="this machine can't create namespaces"),
]

# root, volume for the state, mount options of /tmp, the line that creates the user; then the lent folders
_ENTER = """
set -e
root=$1 volume=$2 options=$3 user=$4; shift 4
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/tmp" "$root/var/lib/ledger-reaper"
for each in usr bin sbin lib lib64; do
  if [ -L "/$each" ]; then cp -P "/$each" "$root/$each"
  elif [ -d "/$each" ]; then mkdir -p "$root/$each"; mount --rbind "/$each" "$root/$each"
  fi
done
for each in dev proc sys; do mkdir -p "$root/$each"; mount --rbind "/$each" "$root/$each"; done
cp -a /etc/. "$root/etc"
chroot "$root" $user
for each in "$@"; do
  mkdir -p "$root$each"
  mount --bind "$each" "$root$each"
  mount -o remount,bind,ro "$root$each"
done
mount --bind "$volume" "$root/var/lib/ledger-reaper"
mount -t tmpfs -o "$options" tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
exec chroot --userspec=10001:10001 "$root" /usr/bin/env -i HOME=/tmp PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 \
  LEDGER_REAPER_JARS="$1/jars" LEDGER_REAPER_CONFIG=/etc/ledger-reaper/config.toml \
  PATH="$1/venv/bin:/usr/local/bin:/usr/bin:/bin" "$1/venv/bin/python" /etc/ledger-reaper/job.py
"""
CONFIG = """
[state]
dir = "/var/lib/ledger-reaper/state"
[checkpoints]
dir = "/var/lib/ledger-reaper/checkpoints"
[spark]
master = "local[2]"
driver_memory = "512m"
"""
JOB = """
import os
from pathlib import Path
from pyspark.sql.pandas.types import from_arrow_schema
from streaming import schemas
from streaming.config.load import load
from streaming.spark.session import Jars, end_jvm, start
from streaming.state.receipts import Receipts
from udfs import columns as c

settings = load(Path(os.environ["LEDGER_REAPER_CONFIG"]))
spark = start(settings, Jars(), with_streams=False)
table = Receipts(spark, settings.state_dir)
blank = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: 1}
rows = [tuple((blank | {c.LEDGER_ID: each}).values()) for each in range(1000)]
table.append(spark.createDataFrame(rows, from_arrow_schema(schemas.RECEIPT)), 1)
table.sync()
print("receipts", table.read().where(f"{c.LEDGER_ID} >= 500").count(), "user", os.getuid())
"""


@pytest.mark.parametrize(
    ("options", "is_usable"),
    [pytest.param("mode=1777,exec", True, id="as documented"), pytest.param("mode=1777,noexec", False, id="noexec")],
)
def test_a_user_without_rights_writes_and_reads_receipts_on_a_read_only_root(
    installed: Path, tmp_path: Path, options: str, *, is_usable: bool
) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    (install,) = re.findall(r"(install -d .*) /var/lib/ledger-reaper$", dockerfile, re.MULTILINE)
    (user,) = re.findall(r"(useradd .*\S) \\$", dockerfile, re.MULTILINE)
    root, volume = tmp_path / "root", tmp_path / "volume"
    subprocess.run([*install.split(), str(volume)], check=True)
    (root / "etc" / "ledger-reaper").mkdir(parents=True)
    (root / "etc" / "ledger-reaper" / "config.toml").write_text(CONFIG)
    (root / "etc" / "ledger-reaper" / "job.py").write_text(JOB)
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve().parents[1]
    lent = [str(installed), *([] if python.is_relative_to("/usr") else [str(python)])]
    completed = subprocess.run(
        ["unshare", "--mount", "bash", "-c", _ENTER, "enter", str(root), str(volume), options, user, *lent],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if is_usable:
        assert completed.stdout.splitlines()[-1:] == ["receipts 500 user 10001"], completed.stderr[-6000:]
        assert completed.returncode == 0, completed.stderr[-6000:]
    else:
        assert completed.returncode != 0
        assert "failed to map segment from shared object" in completed.stderr, completed.stderr[-6000:]
