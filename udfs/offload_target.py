"""Which bucket an offloaded ledger's objects are in, and whether we may touch it.

A request can only choose among the buckets that the operator allowed. We never connect to an address from a request:
the endpoint is always the one that the operator wrote.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

AWS = ""  # no endpoint: S3 of AWS itself, found by its region

# Drivers that speak S3, and where they go when no endpoint is named.
_DEFAULT_ENDPOINTS = {"aws-s3": AWS, "s3": AWS, "google-cloud-storage": "https://storage.googleapis.com"}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AWS_HOST = re.compile(r"s3([.-](dualstack\.)?[a-z]{2}(-[a-z]+)+-\d)?\.amazonaws\.com")

# An offload context uses the first name, a namespace's policies the second, and policies before Pulsar 2.8 the others.
_BUCKET_KEYS = (
    "bucket",
    "managedLedgerOffloadBucket",
    "s3ManagedLedgerOffloadBucket",
    "gcsManagedLedgerOffloadBucket",
)
_ENDPOINT_KEYS = (
    "serviceEndpoint",
    "managedLedgerOffloadServiceEndpoint",
    "s3ManagedLedgerOffloadServiceEndpoint",
)
_DRIVER_KEY = "managedLedgerOffloadDriver"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket we may touch."""

    endpoint: str  # "": AWS's own
    name: str
    region: str
    exclusive: bool = False  # no other Pulsar cluster offloads there
    cluster_names_are_unique: bool = False  # every cluster that offloads there, clones included, has a name of its own


@dataclass(frozen=True, slots=True)
class Target:
    """What an offload context or policy names; endpoint in its normal form. driver or bucket "": it names none."""

    driver: str
    endpoint: str
    bucket: str

    @property
    def is_supported(self) -> bool:
        """Whether the driver speaks S3; if none is named, it may."""
        return not self.driver or _plain(self.driver) in _DEFAULT_ENDPOINTS


def target_of(driver_name: str, properties: Mapping[str, str]) -> Target:
    """Read driver, endpoint and bucket from an offload context's metadata or from a namespace's policies."""
    driver = driver_name or properties.get(_DRIVER_KEY) or ""
    endpoint = _first(properties, _ENDPOINT_KEYS) or _DEFAULT_ENDPOINTS.get(_plain(driver), AWS)
    return Target(driver, normal_endpoint(endpoint), _first(properties, _BUCKET_KEYS))


def allowed_bucket(target: Target, allowed: Iterable[Bucket]) -> Bucket | None:
    """Return the operator's entry for the target, or None where the target is not on the list."""
    for bucket in allowed:
        if bucket.name == target.bucket and normal_endpoint(bucket.endpoint) == target.endpoint:
            return bucket
    return None


def normal_endpoint(text: str) -> str:
    """Spell an endpoint so that equal ones compare equal; "" for AWS itself. A text that is no URL stays as it is."""
    spelt = text.strip()
    if not spelt:
        return AWS
    try:
        parts = urlsplit(spelt if "://" in spelt else f"https://{spelt}")
        port = parts.port
    except ValueError:
        return spelt
    host = parts.hostname or ""
    if not host or parts.username is not None or parts.query or parts.fragment:
        return spelt
    if _AWS_HOST.fullmatch(host):
        return AWS
    shown = f"[{host}]" if ":" in host else host
    suffix = "" if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{shown}{suffix}{parts.path.rstrip('/')}"


def _plain(driver: str) -> str:
    """Spell a driver in one way: brokers ignore case, and a context may hold the name of Java's constant (AWS_S3)."""
    return driver.lower().replace("_", "-")


def _first(properties: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((properties[key] for key in keys if properties.get(key)), "")
