"""Writes the files that other commands need to use the cluster: a configuration, and S3 credentials."""

from streaming.sandbox.home import BUCKET, REGION, Home, Spec, addresses
from streaming.sandbox.parts.launch import s3_environment

TEMPLATE = """\
# `ledger-reaper sandbox up` writes this file at each start. All waits are cut to seconds: never use it in production.

[pulsar]
service_url = "{pulsar}"
admin_url = "{admin}"

[zookeeper]
hosts = "{zookeeper}"

[two_phase]
reconsume_later_seconds = 5
not_closed_later_seconds = 5
max_retry_delete_count = 3
send_delay_seconds = 0

[service]
trigger_seconds = 1

[safety]
exclusive_bookkeeper = true
min_age_seconds = 5
above_newest_quarantine_seconds = 5

[state]
dir = "{home}/state"

[checkpoints]
dir = "{home}/checkpoints"

[tiered_storage]
allowed = [{{ endpoint = "{s3}", bucket = "{bucket}", region = "{region}", exclusive = true }}]
credentials_file = "{home}/aws-credentials"
offload_grace_seconds = 5

[limits]
deletes_per_second = 0
max_share_per_hour = 1.0

[spark]
ui_port = 0
# -Xshare: no class archive is created, because the process that creates it would outlive the sandbox
java_options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -Xshare:auto"
local_dir = "{home}/spark"

[metrics]
port = 0
"""


def write_local_files(home: Home, spec: Spec) -> None:
    """Write local.toml, env.sh and aws-credentials for the spec's ports, each file atomically."""
    where = addresses(spec)
    text = TEMPLATE.format(
        pulsar=where.pulsar,
        admin=where.admin,
        zookeeper=where.zookeeper,
        s3=where.s3,
        bucket=BUCKET,
        region=REGION,
        home=home.root,
    )
    exports = "".join(f"export {name}={value}\n" for name, value in s3_environment().items())
    credentials = "[default]\n" + "".join(
        f"{name.lower()} = {value}\n" for name, value in s3_environment().items() if name.startswith("AWS_")
    )
    files = ((home.config, text), (home.root / "env.sh", exports), (home.root / "aws-credentials", credentials))
    for path, content in files:
        partial = path.with_suffix(".part")
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)
