"""Topic names as Pulsar writes them into metadata, and the lanes of tenants and namespaces.

Functions with a `topic` accept `persistent://tenant/ns/name`, the managed ledger `tenant/ns/persistent/encoded-name`,
V1 names with their cluster, and segments of scalable topics (Pulsar 5.0). They raise InvalidRequestError for a name
that Pulsar would not have written, because the service would refuse it. A test of Ledger Reaper compares every rule
with the service's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_to_bytes

from ledger_reaper_client.errors import InvalidRequestError

MAX_NAME_LENGTH = 4096
MAX_LEDGER_ID = (1 << 63) - 1
LANE_NAMESPACE = "ledger-deletion"
LANE_NAME = "__ledger_deletion"
RECEIPT_SUFFIX = "-RECEIPT"

_SCHEME = "persistent://"
_DOMAIN = "persistent"
_SEGMENT_DOMAIN = "segment"
_PARTITION_SUFFIX = "-partition-"
_NAMED_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NEEDS_ENCODING = re.compile(r"[^A-Za-z0-9._*-]")
_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})", re.ASCII)
# tenants whose topics are the operator's: they have no lane
_WITHOUT_LANES = frozenset({"pulsar", "sla-monitor"})


@dataclass(frozen=True)
class TopicName:
    """The parts of a topic's name."""

    tenant: str
    namespace: str  # without the tenant
    full_namespace: str  # with the tenant, and the cluster of V1 names
    local_name: str  # decoded; of a segment, its scalable topic's
    descriptor: str  # of a segment: `from-to-id`; otherwise ""

    @property
    def is_v1(self) -> bool:
        """Whether the cluster is part of the name."""
        return self.full_namespace.count("/") > 1

    @property
    def managed_ledger(self) -> str:
        """The name in metadata."""
        encoded = encode_name(self.local_name)
        if self.descriptor:
            return f"{self.full_namespace}/{_SEGMENT_DOMAIN}/{encoded}/{self.descriptor}"
        return f"{self.full_namespace}/{_DOMAIN}/{encoded}"

    @property
    def full(self) -> str:
        """The name as users write it, `persistent://tenant/ns/name`."""
        if self.descriptor:
            return f"{_SEGMENT_DOMAIN}://{self.full_namespace}/{self.local_name}/{self.descriptor}"
        return f"{_SCHEME}{self.full_namespace}/{self.local_name}"

    @property
    def schema_id(self) -> str:
        """The id of the topic's schema, which all partitions or segments share."""
        base = self.local_name if self.descriptor else _base_name(self.local_name)
        return f"{self.tenant}/{self.namespace}/{encode_name(base)}"


def parse_topic(topic: str) -> TopicName:
    """Take a name apart."""
    _check_length(topic)
    scheme, separator, rest = topic.partition("://")
    split = _split_full_name(topic, scheme, rest) if separator else _split_managed_ledger(topic)
    namespace, local_name, descriptor = split
    if len(namespace) not in (2, 3):
        raise InvalidRequestError(f"{shown(topic)} is not a topic: expected persistent://tenant/namespace/name")
    for part in namespace:
        if not _NAMED_ENTITY.fullmatch(part) or part in (".", ".."):
            raise InvalidRequestError(
                f"{shown(part)} is not a tenant, cluster or namespace: letters, digits and -=:._ only"
            )
    if "/" in local_name:
        raise InvalidRequestError(f"topic name {shown(local_name)} contains a slash")
    _check_segment(encode_name(local_name))
    return TopicName(namespace[0], namespace[-1], "/".join(namespace), local_name, descriptor)


def encode_name(name: str) -> str:
    """Encode as Pulsar does (Java's URLEncoder): a space becomes +, ~ becomes %7E, and * stays."""
    if not _NEEDS_ENCODING.search(name):
        return name
    try:
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError:
        raise InvalidRequestError("name contains half of a surrogate pair, which has no UTF-8 form") from None


def encode_cursor(name: str) -> str:
    """Return a cursor's encoded name, given the subscription or that encoded name."""
    _check_length(name)
    try:
        _decode_name(name)
        encoded = name
    except InvalidRequestError:
        encoded = encode_name(name)
    _check_segment(encoded)
    return encoded


def tenant_lane(topic: str) -> str:
    """Return the request topic of a topic's tenant."""
    return _lane(parse_topic(topic), LANE_NAMESPACE)


def namespace_lane(topic: str) -> str:
    """Return the request topic of a topic's namespace."""
    name = parse_topic(topic)
    return _lane(name, name.namespace)


def is_lane(topic: str) -> bool:
    """Whether a request topic, by its full name, is a tenant's or a namespace's own. Never raises."""
    try:
        name = parse_topic(topic)
        return topic == _lane(name, name.namespace)
    except InvalidRequestError:
        return False


def shown(text: str) -> str:
    """Quote a text for a message: escaped, and short enough for a log line."""
    return ascii(text if len(text) <= 120 else f"{text[:117]}...")


def _lane(name: TopicName, namespace: str) -> str:
    if name.is_v1 or name.tenant in _WITHOUT_LANES:
        raise InvalidRequestError(
            f"{shown(name.full)} has no lane: requests for tenant {name.tenant} and for V1 names (with a cluster) go "
            "to the operator's request topic; pass its name as `topic`"
        )
    return f"{_SCHEME}{name.tenant}/{namespace}/{LANE_NAME}"


def _split_full_name(name: str, scheme: str, rest: str) -> tuple[list[str], str, str]:
    parts = rest.split("/")
    if scheme == _SEGMENT_DOMAIN:
        _check_descriptor(name, parts[-1], has_parts=len(parts) == 4)
        return parts[:2], parts[2], parts[3]
    if scheme != _DOMAIN:
        raise InvalidRequestError(f"{shown(name)}: only persistent:// topics, and segments, have ledgers")
    return parts[:-1], parts[-1], ""


def _split_managed_ledger(name: str) -> tuple[list[str], str, str]:
    parts = name.split("/")
    if (
        len(parts) == 5
        and parts[2] == _SEGMENT_DOMAIN
        and (parts[3] != _DOMAIN or _DESCRIPTOR.fullmatch(parts[4]) is not None)
    ):
        _check_descriptor(name, parts[4], has_parts=True)
        return parts[:2], _decode_name(parts[3]), parts[4]
    if len(parts) < 2 or parts[-2] != _DOMAIN:
        raise InvalidRequestError(
            f"{shown(name)} is not a topic: expected persistent://tenant/namespace/name "
            "or tenant/namespace/persistent/encoded-name"
        )
    return parts[:-2], _decode_name(parts[-1]), ""


def _check_descriptor(name: str, descriptor: str, *, has_parts: bool) -> None:
    match = _DESCRIPTOR.fullmatch(descriptor)
    if not has_parts or match is None or match[1] > match[2] or int(match[3]) > MAX_LEDGER_ID:
        raise InvalidRequestError(
            f"{shown(name)} is not a segment: expected segment://tenant/namespace/topic/<from>-<to>-<id>"
        )


def _decode_name(encoded: str) -> str:
    if not _NEEDS_ENCODING.search(encoded):
        return encoded
    if _BROKEN_ESCAPE.search(encoded):
        raise InvalidRequestError(f"{shown(encoded)}: % is not followed by two hex digits")
    try:
        name = unquote_to_bytes(encoded.replace("+", " ")).decode("utf-8")
    except UnicodeError:
        raise InvalidRequestError(f"{shown(encoded)}: percent escapes are not UTF-8") from None
    if encode_name(name) != encoded:
        raise InvalidRequestError(f"{shown(encoded)}: not encoded as Pulsar encodes it")
    return name


def _check_segment(segment: str) -> None:
    if not segment or segment in (".", ".."):
        raise InvalidRequestError(f"{shown(segment)} can't be the name of a topic or subscription")
    if "/" in segment:
        raise InvalidRequestError(f"{shown(segment)} contains a slash, so it is not an encoded name")
    _check_length(segment)
    if _CONTROL_CHARACTER.search(segment):
        raise InvalidRequestError(f"{shown(segment)} contains a control character")


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidRequestError(f"name of {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed")


def _base_name(local_name: str) -> str:
    base, separator, digits = local_name.rpartition(_PARTITION_SUFFIX)
    # as Java's TopicName.getPartitionIndex reads it: `-partition-01` and `-partition--1` are no partitions
    if not separator or not digits.isdecimal() or max(digits) > "\uffff" or len(digits) > 10:
        return local_name
    index = int(digits)
    if index > 2**31 - 1 or len(str(index)) != len(digits):
        return local_name
    if not base:
        raise InvalidRequestError(f"{shown(local_name)} is a partition of a topic without a name")
    return base
