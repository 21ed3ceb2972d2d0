"""The offload drivers that we support, the bucket that an offload context names, and whether we may touch the bucket.

A request can only choose among the buckets that the operator allowed. We never connect to an address from a request:
we use the endpoint that the operator configured.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

AWS = ""  # no endpoint: AWS's own S3, whose address follows from the region


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """An offload driver whose store speaks S3."""

    names: tuple[str, ...]  # in brokers' configuration, contexts and policies; see _plain for other spellings
    default_endpoint: str  # of a context or policy that names no endpoint
    # the driver's own keys, which policies before Pulsar 2.8 use
    bucket_keys: tuple[str, ...] = ()
    endpoint_keys: tuple[str, ...] = ()


DRIVERS = (
    Driver(
        names=("aws-s3", "S3"),
        default_endpoint=AWS,
        bucket_keys=("s3ManagedLedgerOffloadBucket",),
        endpoint_keys=("s3ManagedLedgerOffloadServiceEndpoint",),
    ),
    Driver(
        names=("google-cloud-storage",),
        default_endpoint="https://storage.googleapis.com",
        bucket_keys=("gcsManagedLedgerOffloadBucket",),
    ),
)

# An offload context uses the first key, a namespace's policies the second. A context may name no driver, so the keys of
# all drivers are read, in the table's order.
_DRIVER_KEY = "managedLedgerOffloadDriver"
_BUCKET_KEYS = ("bucket", "managedLedgerOffloadBucket", *(key for driver in DRIVERS for key in driver.bucket_keys))
_ENDPOINT_KEYS = (
    "serviceEndpoint",
    "managedLedgerOffloadServiceEndpoint",
    *(key for driver in DRIVERS for key in driver.endpoint_keys),
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AWS_HOST = re.compile(r"s3([.-](dualstack\.)?[a-z]{2}(-[a-z]+)+-\d)?\.amazonaws\.com")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that the operator allowed."""

    endpoint: str  # "": AWS's own
    name: str
    region: str
    exclusive: bool = False  # no other Pulsar cluster offloads there
    cluster_names_are_unique: bool = False  # every cluster that offloads there, clones included, has a name of its own


@dataclass(frozen=True, slots=True)
class Target:
    """The store that an offload context or policy names."""

    driver: str  # "": it names none
    endpoint: str  # as normal_endpoint returns it
    bucket: str  # "": it names none

    @property
    def is_supported(self) -> bool:
        """Whether the driver speaks S3; an unnamed driver may."""
        return not self.driver or _driver_named(self.driver) is not None


def target_of(driver_name: str, properties: Mapping[str, str]) -> Target:
    """Read driver, endpoint and bucket from an offload context's metadata or from a namespace's policies."""
    name = driver_name or properties.get(_DRIVER_KEY) or ""
    driver = _driver_named(name)
    endpoint = _first(properties, _ENDPOINT_KEYS) or (driver.default_endpoint if driver is not None else AWS)
    return Target(name, normal_endpoint(endpoint), _first(properties, _BUCKET_KEYS))


def supported_drivers() -> str:
    """Return the names of all supported drivers, for a message."""
    *names, last = (name for driver in DRIVERS for name in driver.names)
    return f"{', '.join(names)} and {last}"


def allowed_bucket(target: Target, allowed: Iterable[Bucket]) -> Bucket | None:
    """Return the operator's entry for the target; None if the target is not on the list."""
    for bucket in allowed:
        if bucket.name == target.bucket and normal_endpoint(bucket.endpoint) == target.endpoint:
            return bucket
    return None


def normal_endpoint(text: str) -> str:
    """Return the normal form of an endpoint; "" for AWS itself. A text that is no URL is only stripped."""
    endpoint = text.strip()
    if not endpoint:
        return AWS
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        port = parts.port
    except ValueError:
        return endpoint
    host = parts.hostname or ""
    if not host or parts.username is not None or parts.query or parts.fragment:
        return endpoint
    if _AWS_HOST.fullmatch(host):
        return AWS
    address = f"[{host}]" if ":" in host else host
    suffix = "" if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{address}{suffix}{parts.path.rstrip('/')}"


def _driver_named(name: str) -> Driver | None:
    plain = _plain(name)
    return next((driver for driver in DRIVERS if plain in map(_plain, driver.names)), None)


def _plain(name: str) -> str:
    """Normalise a driver's name: brokers ignore case, and a context may contain Java's constant (AWS_S3)."""
    return name.lower().replace("_", "-")


def _first(properties: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((properties[key] for key in keys if properties.get(key)), "")
