"""Configuration: read once, frozen, judged as a whole; every key is explained in conf/default.toml.

Secrets are files or the environment's business: nothing here holds one.
"""

import re
from urllib.parse import urlsplit

from pydantic import (
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    SettingsConfigDict,
)

from streaming.config.sections import (
    AuditSettings,
    CheckpointSettings,
    InUseSettings,
    LimitSettings,
    MetricsSettings,
    PulsarSettings,
    SafetySettings,
    ServiceSettings,
    SparkSettings,
    StateSettings,
    TieredStorageSettings,
    TopicSettings,
    TwoPhaseSettings,
    ZooKeeperSettings,
)
from udfs.paths import tenant_of
from udfs.retry import MAX_DELAY_MS

_OBJECT_STORES = ("s3://", "s3a://", "s3n://")
_S3A_DIRECTORY = re.compile(r"s3a://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._-]*)+/?")
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")


class Settings(BaseSettings):
    """The whole configuration. Build it with load()."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix="LEDGER_REAPER__",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    service: ServiceSettings
    pulsar: PulsarSettings
    zookeeper: ZooKeeperSettings
    topics: TopicSettings
    two_phase: TwoPhaseSettings
    safety: SafetySettings
    limits: LimitSettings
    in_use: InUseSettings
    tiered_storage: TieredStorageSettings
    audit: AuditSettings
    state: StateSettings
    checkpoints: CheckpointSettings
    spark: SparkSettings
    metrics: MetricsSettings

    @model_validator(mode="after")
    def _combinations(self) -> "Settings":
        faults = list(_faults(self))
        if faults:
            raise ValueError("; ".join(faults))
        return self


def _faults(settings: Settings) -> list[str]:
    """Every combination of keys that can't work, in the operator's words."""
    faults = []
    zookeeper = settings.zookeeper
    roots = (zookeeper.ledgers_root, "/managed-ledgers", "/schemas", "/admin", "/loadbalance", "/namespace")
    if any(zookeeper.own_root == root or zookeeper.own_root.startswith(root + "/") for root in roots):
        faults.append(f"zookeeper.own_root {zookeeper.own_root} lies below a root of Pulsar or BookKeeper")
    faults += _directory_faults(settings.state.dir, settings.checkpoints.dir)
    if zookeeper.timeout_seconds < zookeeper.session_timeout_seconds:
        faults.append(
            f"zookeeper.timeout_seconds ({zookeeper.timeout_seconds}) is less than session_timeout_seconds "
            f"({zookeeper.session_timeout_seconds}): a slow answer would cost the session and with it the lock"
        )
    faults += _tenant_faults(settings.topics)
    if zookeeper.sasl_mechanism and not zookeeper.digest_file:
        faults.append("zookeeper.sasl_mechanism needs zookeeper.digest_file (user:password)")
    faults += _delay_faults(settings)
    if settings.pulsar.token_file and urlsplit(settings.pulsar.admin_url).scheme == "http":
        host = urlsplit(settings.pulsar.admin_url).hostname or ""
        if not host.startswith("127.") and host != "localhost":
            faults.append("pulsar.token_file would send the token unencrypted: use an https:// admin_url")
    return faults


def _bare(location: str) -> str:
    """A location for people, without what could be a secret, wherever in a URI it stands."""
    return re.split(r"[?#]", re.sub(r"://.*@", "://…@", location))[0] if "://" in location else location


def _directory_faults(state: str, checkpoints: str) -> list[str]:
    faults = []
    if state.rstrip("/") == checkpoints.rstrip("/"):
        faults.append("state.dir and checkpoints.dir must be two directories")
    for key, location in (("state.dir", state), ("checkpoints.dir", checkpoints)):
        if _PASSWORD.search(location) or ("://" in location and any(sign in location for sign in "?#")):
            faults.append(
                f"{key} {_bare(location)}: a password, query or fragment (…:…@, ?, #) would be told to logs: name the "
                "place only; credentials come from the store's own configuration"
            )
    if state.startswith(_OBJECT_STORES):
        faults.append(
            f"state.dir {_bare(state)}: receipts and journal can't be on an object store, only checkpoints.dir can. "
            "Name a local or mounted directory"
        )
    if checkpoints.startswith(_OBJECT_STORES) and not _S3A_DIRECTORY.fullmatch(checkpoints):
        faults.append(
            f"checkpoints.dir {_bare(checkpoints)}: on an object store it must be s3a://bucket/folder, of letters, "
            "digits, dots, dashes, underlines and slashes; credentials come from AWS's standard chain, never from here"
        )
    return faults


def _tenant_faults(topics: TopicSettings) -> list[str]:
    """Where a tenant speaks for itself only, it must not be able to write what we wrote about others."""
    trusted = set(topics.trusted_tenants)
    tenants = {tenant_of(topic) for topic in topics.requests}
    if topics.pattern is not None:
        tenants.add(topics.pattern.tenant)
    if len(tenants) == 1 or tenants <= trusted:
        return []
    return [
        f"topics.{key} {topic} belongs to tenant {tenant_of(topic)}, which is not in topics.trusted_tenants, "
        "while several tenants have request topics: name one in a trusted tenant's namespace"
        for key, topic in (("retry", topics.retry), ("dead_letter", topics.dead_letter))
        if tenant_of(topic) not in trusted
    ]


def _delay_faults(settings: Settings) -> list[str]:
    """A retry that lies in its topic for longer than MAX_DELAY_MS is not believed."""
    two_phase, longest_s = settings.two_phase, MAX_DELAY_MS // 1000
    waits = ("reconsume_later_seconds", "reconsume_later_max_seconds", "not_closed_later_seconds")
    faults = [
        f"two_phase.{key} may be {longest_s} (a week) at most" for key in waits if getattr(two_phase, key) > longest_s
    ]
    if 0 < two_phase.reconsume_later_max_seconds < two_phase.reconsume_later_seconds:
        faults.append("two_phase.reconsume_later_max_seconds must be 0 or at least reconsume_later_seconds")
    days, tries = settings.safety.open_quarantine_days, two_phase.max_retry_delete_count
    if days > tries * longest_s // 86_400:
        faults.append(
            f"safety.open_quarantine_days {days}: {tries} tries (two_phase.max_retry_delete_count), a week apart at "
            "most, end before that"
        )
    return faults
