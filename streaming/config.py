"""Configuration: read once, frozen, judged as a whole; every key is explained in conf/default.toml.

Secrets are files or the environment's business: nothing here holds one.
"""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from streaming.errors import ConfigError
from udfs.paths import managed_ledger_name, tenant_of, topic_of
from udfs.records import LedgerComponent
from udfs.retry import MAX_DELAY_MS
from udfs.topic_pattern import TopicPattern, parse_pattern

CONF = Path(__file__).parent.parent / "conf"  # beside the packages, in a checkout and in a wheel alike
_POSITION_PARTITIONS_MAX = 64
_OBJECT_STORES = ("s3://", "s3a://", "s3n://")
_S3A_DIRECTORY = re.compile(r"s3a://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._-]*)+/?")
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")


def _holds_no_secret(credentials: str) -> AfterValidator:
    """For a URL: what it holds reaches log, receipts and dead letters. credentials: where such things go instead."""

    def checked(url: str) -> str:
        if any(sign in url for sign in "@?#"):
            raise ValueError(
                "a URL with a user, password, query or fragment (@, ?, #) would be told to logs and receipts: give "
                f"scheme, host, port and path only; credentials go into {credentials}"
            )
        return url

    return AfterValidator(checked)


_PULSAR = _holds_no_secret("the file of pulsar.token_file")
_BUCKET = _holds_no_secret("the file of tiered_storage.credentials_file")
_AWS = _holds_no_secret("AWS's standard chain (environment, profile or role)")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServiceSettings(_Part):
    """[service]."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    trigger_seconds: PositiveInt
    chunk_rows: Annotated[int, Field(ge=100, le=1_000_000)]


class PulsarSettings(_Part):
    """[pulsar]."""

    service_url: Annotated[str, _PULSAR, Field(pattern=r"^pulsar(\+ssl)?://")]
    admin_url: Annotated[str, _PULSAR, Field(pattern=r"^https?://")]
    token_file: str
    tls_trust_certs_file: str
    timeout_seconds: PositiveInt


class ZooKeeperSettings(_Part):
    """[zookeeper]."""

    hosts: Annotated[str, Field(min_length=1)]
    ledgers_root: Annotated[str, Field(pattern=r"^(/[^/]+)+$")]
    own_root: Annotated[str, Field(pattern=r"^(/[^/]+)+$")]
    session_timeout_seconds: PositiveInt
    timeout_seconds: PositiveInt
    digest_file: str
    sasl_mechanism: str
    use_tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str


SYSTEM_NAMESPACE = "pulsar/system"
OWN_NAMESPACE = "pulsar/ledger-deletion"


class TopicSettings(_Part):
    """[topics]. After loading, retry and dead_letter are filled in and all names are `persistent://…`."""

    requests: Annotated[tuple[str, ...], Field(min_length=1)]
    requests_pattern: str
    trusted_tenants: tuple[str, ...]
    retry: str
    dead_letter: str
    subscription: Annotated[str, Field(min_length=1)]
    retention_minutes: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _full_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        named = dict(values)
        requests = [topic_of(managed_ledger_name(topic)) for topic in named.get("requests") or ()]
        named["requests"] = tuple(requests)
        for key, suffix in (("retry", "-RETRY"), ("dead_letter", "-DLQ")):
            topic = named.get(key) or (_beside(requests[0]) + suffix if requests else "")
            named[key] = topic_of(managed_ledger_name(topic)) if topic else ""
        return named

    @model_validator(mode="after")
    def _distinct(self) -> "TopicSettings":
        if self.requests_pattern:
            parse_pattern(self.requests_pattern)
        names = [*self.requests, self.retry, self.dead_letter]
        if len(set(names)) != len(names):
            raise ValueError(f"the request, retry and dead-letter topics must all differ: {', '.join(names)}")
        for topic in (self.retry, self.dead_letter):
            if topic.startswith(f"persistent://{SYSTEM_NAMESPACE}/"):
                raise ValueError(
                    f"{topic}: brokers never deduplicate topics of {SYSTEM_NAMESPACE}, so copies could be doubled. "
                    "Name topics.retry and topics.dead_letter in another namespace"
                )
        return self

    @property
    def pattern(self) -> TopicPattern | None:
        """requests_pattern taken apart; None where there is none."""
        return parse_pattern(self.requests_pattern) if self.requests_pattern else None

    def takes(self, topic: str) -> bool:
        """Whether a topic (full name) is listed in requests, or is what requests_pattern matches, were it there."""
        pattern = self.pattern
        return topic in self.requests or (
            pattern is not None and topic not in (self.retry, self.dead_letter) and pattern.matches(topic)
        )


def _beside(request_topic: str) -> str:
    """Brokers take every topic of pulsar/system for one of their own, and never deduplicate it."""
    return request_topic.replace(f"://{SYSTEM_NAMESPACE}/", f"://{OWN_NAMESPACE}/", 1)


class TwoPhaseSettings(_Part):
    """[two_phase]: PIP-186's keys."""

    ledger_deletion_parallelism: Annotated[int, Field(ge=1, le=_POSITION_PARTITIONS_MAX)]
    reconsume_later_seconds: PositiveInt
    reconsume_later_max_seconds: NonNegativeInt
    not_closed_later_seconds: PositiveInt
    max_retry_delete_count: NonNegativeInt
    send_delay_seconds: NonNegativeInt


class SafetySettings(_Part):
    """[safety]."""

    exclusive_bookkeeper: bool
    min_age_seconds: PositiveInt
    above_newest_quarantine_seconds: PositiveInt
    open_quarantine_days: NonNegativeInt
    max_shrink: Annotated[float, Field(gt=0, le=1)]
    shrink_applies_above_ledgers: NonNegativeInt
    ask_broker: bool
    allowed_namespaces: tuple[str, ...]
    allowed_components: tuple[LedgerComponent, ...]


class LimitSettings(_Part):
    """[limits]."""

    max_deletes_per_batch: PositiveInt
    max_deletes_per_hour: PositiveInt
    max_deletes_per_hour_per_tenant: PositiveInt
    max_deletes_per_hour_per_owner: PositiveInt
    max_share_per_hour: Annotated[float, Field(gt=0, le=1)]
    share_applies_above_ledgers: NonNegativeInt
    deletes_per_second: NonNegativeInt


class InUseSettings(_Part):
    """[in_use]."""

    refresh_seconds: PositiveInt
    max_cache_mib: PositiveInt


class BucketSettings(_Part):
    """One entry of tiered_storage.allowed."""

    endpoint: Annotated[str, _BUCKET, Field(pattern=r"^(https?://[^/@?#]+(/[^@?#]*)?)?$")] = ""
    bucket: Annotated[str, Field(min_length=3, max_length=63)]
    region: str = "us-east-1"
    exclusive: bool = False


class TieredStorageSettings(_Part):
    """[tiered_storage]."""

    allowed: tuple[BucketSettings, ...]
    credentials_file: str
    offload_grace_seconds: NonNegativeInt
    pulsar_cluster: str


class AuditSettings(_Part):
    """[audit]."""

    every_seconds: NonNegativeInt
    publish: bool


class StateSettings(_Part):
    """[state]."""

    dir: Annotated[str, Field(min_length=1)]
    journal_days: PositiveInt
    receipts_days: PositiveInt
    dead_letters_days: PositiveInt


class CheckpointSettings(_Part):
    """[checkpoints]. endpoint "": AWS's own."""

    dir: Annotated[str, Field(min_length=1)]
    endpoint: Annotated[str, _AWS, Field(pattern=r"^(https?://[^/@?#]+)?$")]
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]


class SparkSettings(_Part):
    """[spark]."""

    master: str
    connector: str
    ui_port: NonNegativeInt
    driver_memory: str
    java_options: str
    local_dir: str


class MetricsSettings(_Part):
    """[metrics]."""

    port: Annotated[int, Field(ge=-1, le=65_535)]


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


def is_s3a(location: str) -> bool:
    """Whether a location is on an object store, as Hadoop names one."""
    return location.startswith("s3a://")


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


def load(path: str | Path | None) -> Settings:
    """Read default.toml, then the file, then the environment. Raises ConfigError naming every fault at once."""
    sources = [CONF / "default.toml"]
    if path is not None:
        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"no configuration at {file}: write one (conf/production.example.toml is a start)")
        sources.append(file)

    class _FromFiles(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del init_settings, dotenv_settings, file_secret_settings
            named = [TomlConfigSettingsSource(settings_cls, source) for source in reversed(sources)]
            return (env_settings, *named)

    try:
        return Settings.model_construct(**dict(_FromFiles()))
    except ValidationError as error:
        raise ConfigError(_explain(error, sources[-1])) from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{sources[-1]} can't be read: {error}") from error


def _explain(error: ValidationError, source: Path) -> str:
    lines = [f"{source} can't be used:"]
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"]) or "(combination)"
        text = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"]
        lines.append(f"  {key}: {text}")
    return "\n".join(lines)
