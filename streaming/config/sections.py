"""The sections of the configuration, each frozen and validated; conf/default.toml explains every key.

streaming.config.combinations checks keys of several sections together.
"""

import json
import logging
import re
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError
from udfs.formats.metadata_url import other_store
from udfs.paths import checked_subscription, managed_ledger_name, segment_of, tenant_of, topic_of
from udfs.records import LedgerComponent
from udfs.requests.lanes import ALL_LANES, Lanes
from udfs.requests.request_format import MAX_PAYLOAD_BYTES
from udfs.requests.topic_pattern import TopicPattern, is_one_name, parse_pattern
from udfs.units import MAX_CHUNK_ROWS

log = logging.getLogger("ledger-reaper")

SYSTEM_NAMESPACE = "pulsar/system"
OWN_NAMESPACE = "pulsar/ledger-deletion"

_POSITION_PARTITIONS_MAX = 64
_IS_PATH, _IS_DURATION = object(), object()
# A path of this machine; streaming.config.load makes it absolute.
LocalPath = Annotated[str, _IS_PATH]
# Operators have given these instead of the path of a file: a URL, a JSON web token, PEM, the content of a key file.
_CONTENT = re.compile(r"://|\n|-----BEGIN |(^|/)(eyJ[\w-]+\.[\w-]+\.[\w-]*$|\{)")


def _is_no_content(path: str) -> str:
    """Refuse the content of a secret file instead of its path, because logs and `config show` print the path."""
    if _CONTENT.search(path):
        raise ValueError("must be the path of a file, not its content; if a log has shown the content, replace it")
    return path


FilePath = Annotated[LocalPath, AfterValidator(_is_no_content)]


def path_keys(section: Any) -> tuple[str, ...]:
    """Return the keys of a section that are paths of this machine."""
    return tuple(name for name, field in section.model_fields.items() if _IS_PATH in field.metadata)


def duration_keys(section: Any) -> tuple[str, ...]:
    """Return the keys of a section whose values are durations with a unit, such as "6h", or "never"."""
    return tuple(name for name, field in section.model_fields.items() if _IS_DURATION in field.metadata)


def _holds_no_secret(credentials: str) -> AfterValidator:
    """Refuse a URL with credentials, because logs, receipts and dead letters show it; they belong in `credentials`."""

    def checked(url: str) -> str:
        if any(sign in url for sign in "@?#"):
            raise ValueError(
                "logs and receipts would show the user, password, query or fragment of this URL (@, ?, #): give "
                f"scheme, host, port and path only; credentials belong in {credentials}"
            )
        return url

    return AfterValidator(checked)


_PULSAR = _holds_no_secret("the file of pulsar.token_file or pulsar.basic_file")
_ISSUER = _holds_no_secret("the file of pulsar.oauth2_key_file")
_BUCKET = _holds_no_secret("the file of tiered_storage.credentials_file")
_COLLECTOR = _holds_no_secret("OpenTelemetry's variable OTEL_EXPORTER_OTLP_HEADERS")
_AWS = _holds_no_secret("AWS's standard chain (environment, profile or role)")


def _one_topic(name: str) -> str:
    """Return the full name of a topic that the service can own; "" stays "": the default is filled in before."""
    if not name:
        return name
    topic = topic_of(managed_ledger_name(name))
    if segment_of(topic):
        raise ValueError(f"{topic} is a segment of a scalable topic: name a persistent:// topic")
    if not is_one_name(topic):
        raise ValueError(f"{topic!r}: Spark's connector would read another topic; name one without a comma")
    return topic


def _deduplicated_topic(name: str) -> str:
    topic = _one_topic(name)
    if topic.startswith(f"persistent://{SYSTEM_NAMESPACE}/"):
        raise ValueError(
            f"{topic}: brokers never deduplicate topics of {SYSTEM_NAMESPACE}, so it could contain messages twice; "
            "name a topic in another namespace"
        )
    return topic


def _pattern(text: str) -> str:
    if text:
        parse_pattern(text)
    return text


def _tenant(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name[:_SHOWN]!r} is not the name of a tenant, as in "shop"')
    return name


def _tenant_or_namespace(name: str) -> str:
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f'{name[:_SHOWN]!r} is neither a namespace nor a tenant, as in "shop/prod" and "shop"')
    return name


_NAME = re.compile(r"[-=:.\w]+", re.ASCII)  # Pulsar's NamedEntity
_MOST_PARTS = 3  # namespaces of version 1 have a cluster, too
_SHOWN = 60
Topic = Annotated[str, AfterValidator(_one_topic)]
DeduplicatedTopic = Annotated[str, AfterValidator(_deduplicated_topic)]
Tenant = Annotated[str, AfterValidator(_tenant)]
TenantOrNamespace = Annotated[str, AfterValidator(_tenant_or_namespace)]


def _servers(hosts: str) -> str:
    if store := other_store(hosts):
        raise ValueError(
            f"this is an address of {store}: the service reads ZooKeeper only, and can't serve a cluster whose "
            "metadata are elsewhere (docs/limits.md)"
        )
    if not all(map(_SERVER.fullmatch, hosts.partition("/")[0].split(","))):
        raise ValueError(
            f"{json.dumps(hosts[:_SHOWN])} must be host:port of each server, separated by commas, and a chroot, if "
            'there is one, as in "zk-0.example.com:2181,zk-1.example.com:2181/pulsar"'
        )
    return hosts


_SERVER = re.compile(r"\s*(\[[0-9a-fA-F:.]+\]|[^\s,/:@]+)(:[0-9]{1,5}|\s*)")  # kazoo takes no space after a port


def _supported(location: str) -> str:
    scheme = location.partition("://")[0] if "://" in location else _SCHEMES[0]
    if scheme not in _SCHEMES:
        raise ValueError(
            f"{scheme}:// is not supported, only file://, s3:// and s3a:// are. Give the path of a local or mounted "
            'directory, as in "/var/lib/ledger-reaper/state", or s3://bucket/folder'
        )
    return location


_SCHEMES = ("file", "s3", "s3a")
Directory = Annotated[LocalPath, Field(min_length=1), AfterValidator(_supported)]


# Hosts separated by commas; the scheme is before the first host only.
_HOSTS = "[^/]+(/([^/].*)?)?"
# descriptions of what a key must be, for messages
_HTTP_URL = "a URL that starts with http:// or https://"
_ZNODE = "the path of a znode, without a slash at its end"
_EXAMPLE_STORE = "https://s3.example.com"


def _ip_address(text: str) -> str:
    # only a number, because a name may later resolve to another address
    return str(ip_address(text))


ListenAddress = Annotated[str, AfterValidator(_ip_address)]


def _seconds_or_never(text: Any) -> int:
    """Parse a duration; "never" and 0 are 0."""
    if str(text).strip().lower() in ("0", "never"):
        return 0
    try:
        # a number without a unit is refused, because it may be meant in days
        return seconds_of(str(text), "the duration")
    except ConfigError as error:
        raise ValueError(f'{error}, or "never"') from error


# In seconds; written as a duration such as "6h". 0: never.
QuietPeriod = Annotated[int, BeforeValidator(_seconds_or_never), _IS_DURATION]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServiceSettings(_Part):
    """[service]."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="1 to 64 letters, digits, dashes and underscores"),
    ]
    trigger_seconds: PositiveInt
    reading_seconds: Annotated[int, Field(ge=5, le=3600)]
    chunk_rows: Annotated[int, Field(ge=100, le=MAX_CHUNK_ROWS)]
    max_request_bytes: Annotated[int, Field(ge=1024, le=MAX_PAYLOAD_BYTES)]


class PulsarSettings(_Part):
    """[pulsar]."""

    service_url: Annotated[
        str,
        _PULSAR,
        Field(
            pattern=rf"^pulsar(\+ssl)?://{_HOSTS}$",
            description="a URL that starts with pulsar:// or pulsar+ssl://",
            examples=["pulsar+ssl://broker.example.com:6651"],
        ),
    ]
    admin_url: Annotated[
        str,
        _PULSAR,
        Field(pattern=rf"^https?://{_HOSTS}$", description=_HTTP_URL, examples=["https://broker.example.com:8443"]),
    ]
    token_file: FilePath
    basic_file: FilePath
    oauth2_key_file: FilePath
    oauth2_issuer_url: Annotated[
        str,
        _ISSUER,
        Field(
            pattern=r"^(https?://[^/]+(/.*)?)?$", description=_HTTP_URL, examples=["https://login.example.com/realms/a"]
        ),
    ]
    oauth2_audience: str
    oauth2_scope: str
    tls_cert_file: FilePath
    tls_key_file: FilePath
    tls_trust_certs_file: FilePath
    tls_check_hostname: bool
    timeout_seconds: PositiveInt

    @property
    def credential_keys(self) -> tuple[str, ...]:
        """The keys that name credentials; a valid configuration has one at most."""
        kinds = ("token_file", "basic_file", "oauth2_key_file", "tls_cert_file")
        return tuple(f"pulsar.{key}" for key in kinds if getattr(self, key))


class ZooKeeperSettings(_Part):
    """[zookeeper]."""

    hosts: Annotated[str, Field(min_length=1), AfterValidator(_servers)]
    ledgers_root: Annotated[str, Field(pattern=r"^(/[^/]+)+$", description=_ZNODE)]
    own_root: Annotated[str, Field(pattern=r"^(/[^/]+)+$", description=_ZNODE)]
    session_timeout_seconds: PositiveInt
    timeout_seconds: PositiveInt
    digest_file: FilePath
    sasl_mechanism: str
    kerberos_principal: Annotated[
        str,
        Field(
            pattern=r"^([^@\s]+@[^@/\s]+)?$",
            description="a principal with its realm",
            examples=["ledger-reaper@EXAMPLE.COM"],
        ),
    ]
    kerberos_keytab_file: FilePath
    kerberos_service: Annotated[str, Field(pattern=r"^[^@/\s]+$", description="a name without host and realm")]
    use_tls: bool
    tls_ca_file: FilePath
    tls_cert_file: FilePath
    tls_key_file: FilePath


_SUFFIXES = {"retry": "-RETRY", "dead_letter": "-DLQ", "watch": "-WATCH"}


class TopicSettings(_Part):
    """[topics]. Loading fills in retry, dead_letter and watch; all names then have the form `persistent://…`."""

    requests: Annotated[tuple[Topic, ...], Field(min_length=1)]
    requests_pattern: Annotated[str, AfterValidator(_pattern)]
    lanes: Lanes
    lane_partitions: Annotated[int, Field(ge=1, le=_POSITION_PARTITIONS_MAX)]
    shared_without_lane: bool
    receipts: bool
    trusted_tenants: tuple[Tenant, ...]
    retry: DeduplicatedTopic
    dead_letter: DeduplicatedTopic
    watch: DeduplicatedTopic
    subscription: Annotated[str, AfterValidator(checked_subscription)]
    retention_minutes: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        requests = values.get("requests") if isinstance(values, dict) else ()
        try:
            first = _one_topic(requests[0]) if requests and _are_texts(requests) else ""
        except ValueError:
            first = ""
        if not first:
            return values  # the fields' own checks name the fault
        defaults = {key: _outside_system(first) + suffix for key, suffix in _SUFFIXES.items()}
        return values | {key: values.get(key) or default for key, default in defaults.items()}

    @model_validator(mode="after")
    def _distinct(self) -> "TopicSettings":
        names = self.owned
        if len(set(names)) != len(names):
            raise ValueError(f"the request, retry, dead-letter and watch topics must all differ: {', '.join(names)}")
        return self

    @property
    def deduplicated(self) -> tuple[str, str, str]:
        """The topics to which we publish each message exactly once, which needs the broker's deduplication."""
        return self.retry, self.dead_letter, self.watch

    @property
    def owned(self) -> tuple[str, ...]:
        """The topics that only this service may use, without lanes and those that match requests_pattern."""
        return (*self.requests, *self.deduplicated)

    @property
    def claims(self) -> tuple[str, ...]:
        """The names by which a service refuses a second one on the same topics: `owned`, and one for all lanes."""
        return self.owned if self.lanes is Lanes.ONE else (*self.owned, ALL_LANES)

    @property
    def pattern(self) -> TopicPattern | None:
        """The parsed requests_pattern; None if there is none."""
        return parse_pattern(self.requests_pattern) if self.requests_pattern else None

    def lane_of(self, owner: str) -> str | None:
        """Return the lane for requests that name a topic or managed ledger, whether the lane exists or not.

        None: they use the first of `requests`. Raises ValueError if `owner` is no such name.
        """
        return None if tenant_of(owner) in self.trusted_tenants else self.lanes.of(owner)

    def route(self, owner: str) -> str:
        """Return the topic for requests that name this owner: its lane, or the first of `requests`. Never raises."""
        try:
            return self.lane_of(owner) or self.requests[0]
        except ValueError:  # no topic has this name: the service refuses the request
            return self.requests[0]

    @property
    def destination(self) -> str:
        """Where requests are sent, for operators."""
        return self.requests[0] if self.lanes is Lanes.ONE else f"the lane of each {self.lanes.value}"

    def is_lane(self, topic: str) -> bool:
        """Whether a topic (full name, existing or not) is a lane."""
        return self.lanes.has(topic) and tenant_of(topic) not in self.trusted_tenants and topic not in self.owned

    def is_matched(self, topic: str) -> bool:
        """Whether a topic (full name, existing or not) matches requests_pattern, and is neither listed nor a lane."""
        pattern = self.pattern
        return pattern is not None and topic not in self.owned and not self.is_lane(topic) and pattern.matches(topic)

    def is_read_in_passes(self, topic: str) -> bool:
        """Whether a topic (full name, existing or not) is a lane, or read like a lane because it matches."""
        return self.is_lane(topic) or self.is_matched(topic)

    @property
    def has_passes(self) -> bool:
        """Whether there may be such topics."""
        return self.lanes is not Lanes.ONE or self.pattern is not None

    def takes(self, topic: str) -> bool:
        """Whether a topic (full name, existing or not) is listed, is `watch` or a lane, or matches requests_pattern."""
        pattern = self.pattern
        return (
            topic in (*self.requests, self.watch)
            or self.is_lane(topic)
            or (pattern is not None and topic not in (self.retry, self.dead_letter) and pattern.matches(topic))
        )


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _outside_system(request_topic: str) -> str:
    # brokers never deduplicate topics in pulsar/system
    return request_topic.replace(f"://{SYSTEM_NAMESPACE}/", f"://{OWN_NAMESPACE}/", 1)


class TwoPhaseSettings(_Part):
    """[two_phase]: PIP-186's keys."""

    ledger_deletion_parallelism: Annotated[int, Field(ge=1, le=_POSITION_PARTITIONS_MAX)]
    reconsume_later_seconds: PositiveInt
    reconsume_later_max_seconds: NonNegativeInt
    not_closed_later_seconds: PositiveInt
    max_retry_delete_count: NonNegativeInt
    send_delay_seconds: NonNegativeInt


_OLD_QUIET_PERIOD = "open_quarantine_days"
# (section, key) -> the older spellings of a key that files may still contain
OLDER_KEYS = {("safety", "open_quiet_period"): (_OLD_QUIET_PERIOD,)}


class SafetySettings(_Part):
    """[safety]."""

    exclusive_bookkeeper: bool
    min_age_seconds: PositiveInt
    above_newest_quarantine_seconds: PositiveInt
    open_quiet_period: QuietPeriod
    max_shrink: Annotated[float, Field(gt=0, le=1)]
    shrink_applies_above_ledgers: NonNegativeInt
    ask_broker: bool
    allowed_namespaces: tuple[TenantOrNamespace, ...]
    allowed_components: tuple[LedgerComponent, ...]

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, keys: Any) -> Any:
        """Accept open_quarantine_days for another release. If both keys are set, the longer period counts."""
        if not isinstance(keys, dict) or _OLD_QUIET_PERIOD not in keys:
            return keys
        days = str(keys[_OLD_QUIET_PERIOD]).strip()
        if not days.isdecimal():
            raise ValueError(f'{_OLD_QUIET_PERIOD} is open_quiet_period now: write a duration such as "6h", or "never"')
        old, new = int(days) * 86_400, _seconds_or_never(keys.get("open_quiet_period", "never"))
        kept = f"{max(old, new)}s" if old and new else "never"
        log.warning(
            'safety.%s is safety.open_quiet_period now: write "%s" there instead of %s',
            _OLD_QUIET_PERIOD,
            f"{days}d" if old else "never",
            days,
        )
        return {**{key: value for key, value in keys.items() if key != _OLD_QUIET_PERIOD}, "open_quiet_period": kept}


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
    """An entry of tiered_storage.allowed."""

    endpoint: Annotated[
        str,
        _BUCKET,
        Field(pattern=r"^(https?://[^/@?#]+(/[^@?#]*)?)?$", description=_HTTP_URL, examples=[_EXAMPLE_STORE]),
    ] = ""
    bucket: Annotated[str, Field(min_length=3, max_length=63)]
    region: str = "us-east-1"
    exclusive: bool = False
    cluster_names_are_unique: bool | None = None  # None: not declared; false: nothing in the bucket is deleted

    @property
    def is_declared(self) -> bool:
        """Whether the operator declared who else offloads there."""
        return self.exclusive or self.cluster_names_are_unique is not None


class TieredStorageSettings(_Part):
    """[tiered_storage]."""

    allowed: tuple[BucketSettings, ...]
    credentials_file: FilePath
    offload_grace_seconds: NonNegativeInt
    pulsar_cluster: str


class AuditSettings(_Part):
    """[audit]."""

    every_seconds: NonNegativeInt
    publish: bool


class SpaceSettings(_Part):
    """[space]."""

    price_per_gb_month: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tiered_price_per_gb_month: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    currency: Annotated[str, Field(max_length=16)]


class SnapshotSettings(_Part):
    """[snapshots]."""

    guard_every_seconds: NonNegativeInt
    trim_namespaces: tuple[TenantOrNamespace, ...]


class WatchSettings(_Part):
    """[watch]."""

    enabled: bool
    poll_seconds: PositiveInt
    reads_per_second: NonNegativeInt
    unlisted_after_seconds: PositiveInt
    mark_ahead: bool


class StateSettings(_Part):
    """[state]."""

    dir: Directory
    journal_days: PositiveInt
    receipts_days: PositiveInt
    dead_letters_days: PositiveInt


class CheckpointSettings(_Part):
    """[checkpoints]."""

    dir: Directory

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, keys: Any) -> Any:
        moved = [key for key in ("endpoint", "region") if isinstance(keys, dict) and key in keys]
        if moved:
            names = " and ".join(f"s3.{key}" for key in moved)
            raise ValueError(f"{' and '.join(moved)} moved to the section [s3]: write {names} instead")
        return keys


class StoreSettings(_Part):
    """[s3]: the store of state and checkpoints on S3. An empty endpoint is AWS's."""

    endpoint: Annotated[
        str,
        _AWS,
        Field(pattern=r"^(https?://[^/@?#]+)?$", description=f"{_HTTP_URL}, without a path", examples=[_EXAMPLE_STORE]),
    ]
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", description="small letters, digits and dashes")]


class SparkSettings(_Part):
    """[spark]."""

    master: Annotated[
        str,
        Field(
            pattern=r"^(local(\[(\*|\d+)( *, *\d+)?\])?|local-cluster\[[\d, ]+\]|yarn|(spark|k8s|mesos)://\S+)$",
            description="local[THREADS], yarn, or a URL that starts with spark:// or k8s://",
        ),
    ]
    ui_address: ListenAddress
    ui_port: NonNegativeInt
    driver_memory: Annotated[
        str, Field(pattern=r"^[1-9][0-9]{0,8}[kmgtKMGT]$", description="a whole number with the unit k, m, g or t")
    ]
    java_options: str
    local_dir: LocalPath

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, keys: Any) -> Any:
        """Accept `connector` for another release, and ignore it."""
        if not isinstance(keys, dict) or "connector" not in keys:
            return keys
        log.warning(
            "spark.connector has no effect and will be refused by a later version: remove it. The program takes the "
            "connector that fits the installed PySpark"
        )
        return {key: value for key, value in keys.items() if key != "connector"}


class NotifySettings(_Part):
    """[notify]."""

    webhook_file: FilePath
    ca_file: FilePath
    format: Literal["slack", "alertmanager"]
    after_seconds: NonNegativeInt


class MetricsSettings(_Part):
    """[metrics]."""

    address: ListenAddress
    port: Annotated[int, Field(ge=-1, le=65_535)]
    cluster: str
    otlp_endpoint: Annotated[
        str,
        _COLLECTOR,
        Field(pattern=r"^(https?://\S+)?$", description=_HTTP_URL, examples=["http://collector.example.com:4318"]),
    ]
