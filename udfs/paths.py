"""Topic names, their encoded forms, and the znode paths of Pulsar and BookKeeper.

A managed ledger is named `tenant/ns/persistent/<encoded local name>` (V1: `tenant/cluster/ns/persistent/...`). The
managed ledger of a scalable topic's segment (Pulsar 5.0) is named `tenant/ns/segment/<encoded topic>/<from>-<to>-<id>`.
Every function with a topic as its argument accepts these forms, `persistent://...` and `segment://...`. It raises
ValueError for a name that Pulsar would not have written: no znode exists at the path of a wrong name, so the owner
would seem to be gone.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote_plus, unquote_to_bytes

MANAGED_LEDGERS_ROOT = "/managed-ledgers"
BROKERS = "/loadbalance/brokers"  # an ephemeral znode for each running broker, with all load managers
SCHEMAS_ROOT = "/schemas"
SCALABLE_TOPICS_ROOT = "/topics"  # the layouts of scalable topics (udfs.formats.segment_layout)
LEDGERS_ROOT = "/ledgers"

# No cluster has longer names; we refuse them before they get into logs and paths.
MAX_NAME_LENGTH = 4096

# Ids from here on don't fit the short form of hierarchical layouts (Integer.MAX_VALUE itself is already long).
FIRST_LONG_ID = 2_147_483_647
MAX_LEDGER_ID = (1 << 63) - 1

_SCHEME = "persistent://"
_DOMAIN = "persistent"
SEGMENT_DOMAIN = "segment"
_PARTITION_SUFFIX = "-partition-"
_NAMED_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc
_NEEDS_ENCODING = re.compile(r"[^A-Za-z0-9._*-]")
# the hashes from and to, inclusive, and the segment's id, as Java's format "%04x-%04x-%d" writes them
_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _TopicName:
    """The parts of a topic name."""

    tenant: str
    namespace: str
    full_namespace: str  # with the tenant, and the cluster of V1 names
    local_name: str  # decoded; of a segment, its scalable topic's
    descriptor: str = ""  # of a segment: `<from>-<to>-<id>`


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a segment's name."""

    topic: str  # the scalable topic: `tenant/ns/encoded`
    first_hash: int
    last_hash: int  # inclusive
    segment_id: int

    @property
    def may_be_v1(self) -> bool:
        """Whether a topic with a V1 name has the same managed ledger.

        `t/x/segment/persistent/0000-ffff-0` is a segment of `topic://t/x/persistent`, and it is also the V1 topic
        `0000-ffff-0` of cluster x and namespace `segment`.
        """
        return self.topic.endswith(f"/{_DOMAIN}")


def encode_name(name: str) -> str:
    """Encode as Pulsar's Codec (Java's URLEncoder, UTF-8) does: a space becomes +, ~ becomes %7E, and * stays."""
    if not _NEEDS_ENCODING.search(name):
        return name
    try:
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError:
        raise ValueError("name contains half of a surrogate pair, which has no UTF-8 form") from None


def decode_name(encoded: str) -> str:
    """Undo encode_name; raise ValueError unless `encoded` is exactly what encode_name writes for the result."""
    if not _NEEDS_ENCODING.search(encoded):
        return encoded
    if _BROKEN_ESCAPE.search(encoded):
        raise ValueError(f"{_shown(encoded)}: % is not followed by two hex digits")
    try:
        name = unquote_to_bytes(encoded.replace("+", " ")).decode("utf-8")
    except UnicodeError:
        raise ValueError(f"{_shown(encoded)}: percent escapes are not UTF-8") from None
    if encode_name(name) != encoded:
        raise ValueError(f"{_shown(encoded)}: not encoded as Pulsar encodes it, which is {_shown(encode_name(name))}")
    return name


def encode_cursor(name: str) -> str:
    """Return the cursor's encoded name, given the subscription or that encoded name.

    A name that is a valid encoded form counts as encoded, because the cursor's znode and the ledger's `pulsar/cursor`
    hold that form: "a+b" is the cursor of subscription "a b". So a second call changes nothing.
    """
    _check_length(name)
    try:
        decode_name(name)
        encoded = name
    except ValueError:
        encoded = encode_name(name)
    _check_segment(encoded)
    return encoded


def checked_subscription(name: str) -> str:
    """Return the name of a subscription, which must be one that brokers can create and people can tell from others."""
    if not name.strip():
        raise ValueError("a subscription's name must not be blank")
    if _CONTROL_CHARACTER.search(name):
        raise ValueError(f"{_shown(name)} contains a control character")
    _check_segment(encode_name(name))
    return name


def managed_ledger_name(topic: str) -> str:
    """Return `tenant/ns/persistent/encoded`, or `tenant/ns/segment/encoded/<from>-<to>-<id>`."""
    parsed = _parse(topic)
    if parsed.descriptor:
        return f"{parsed.full_namespace}/{SEGMENT_DOMAIN}/{encode_name(parsed.local_name)}/{parsed.descriptor}"
    return f"{parsed.full_namespace}/{_DOMAIN}/{encode_name(parsed.local_name)}"


def topic_of(managed_ledger: str) -> str:
    """Return `persistent://tenant/ns/name`, or `segment://tenant/ns/name/<from>-<to>-<id>`, as users write the name."""
    parsed = _parse(managed_ledger)
    if parsed.descriptor:
        return f"{SEGMENT_DOMAIN}://{parsed.full_namespace}/{parsed.local_name}/{parsed.descriptor}"
    return f"{_SCHEME}{parsed.full_namespace}/{parsed.local_name}"


def topic_named(name: str) -> str:
    """Return `persistent://tenant/ns/name` (topic_of) for a name that an operator wrote or copied.

    Accepts pulsar-admin's forms (`persistent://tenant/ns/name`, `tenant/ns/name`, and `name` for a topic in
    public/default), the names that our tables print, and managed ledgers (`tenant/ns/persistent/encoded`); also
    partitions, segments, and V1 names with their cluster. Requests and znodes name topics more strictly: see
    managed_ledger_name.
    """
    parts = name.split("/")
    if "://" in name or _DOMAIN in parts[2:-1] or _is_managed_ledger_of_segment(parts):
        return topic_of(name)
    if len(parts) == 1:
        return topic_of(f"{_SCHEME}public/default/{name}")
    if len(parts) in (3, 4):
        return topic_of(f"{_SCHEME}{name}")
    raise ValueError(
        f"{_shown(name)} is not a topic: expected persistent://tenant/namespace/name, tenant/namespace/name, or a name "
        "in public/default"
    )


def base_topic(topic: str) -> str:
    """Return the partitioned topic a partition belongs to, or the topic or segment itself (topic_of)."""
    parsed = _parse(topic)
    if parsed.descriptor:
        return topic_of(topic)
    return f"{_SCHEME}{parsed.full_namespace}/{_base_name(parsed.local_name)}"


def partition_index(topic: str) -> int:
    """Return N of `...-partition-N`; -1 if the topic is not a partition."""
    parsed = _parse(topic)
    return -1 if parsed.descriptor else _partition_index(parsed.local_name)


def segment_of(topic: str) -> SegmentName | None:
    """Return the parts of a segment's name; None if the topic is not a segment."""
    parsed = _parse(topic)
    match = _DESCRIPTOR.fullmatch(parsed.descriptor)
    if match is None:
        return None
    scalable_topic = f"{parsed.full_namespace}/{encode_name(parsed.local_name)}"
    return SegmentName(scalable_topic, int(match[1], 16), int(match[2], 16), int(match[3]))


def segments_among(topics: Iterable[str]) -> dict[str, SegmentName]:
    """Return the segments among valid names, by name, each once."""
    return {topic: segment for topic in topics if (segment := segment_of(topic))}


def layout_path(scalable_topic: str, root: str = SCALABLE_TOPICS_ROOT) -> str:
    """Return the znode of the layout of a scalable topic, which is `tenant/ns/encoded`, as SegmentName.topic."""
    return f"{_checked_root(root)}/{checked_schema_id(scalable_topic)}"


def tenant_of(topic: str) -> str:
    """Return the topic's tenant."""
    return _parse(topic).tenant


def namespace_of(topic: str) -> str:
    """Return `tenant/ns` (V1: `tenant/cluster/ns`)."""
    return _parse(topic).full_namespace


def is_v1(namespace: str) -> bool:
    """Whether a namespace has a V1 name, with the cluster between tenant and namespace."""
    return namespace.count("/") > 1


def schema_id_of(topic: str) -> str:
    """Return `tenant/ns/encoded`: shared by all partitions or segments, and without the cluster of V1 names."""
    parsed = _parse(topic)
    # a scalable topic has no partitions, whatever its name
    base = parsed.local_name if parsed.descriptor else _base_name(parsed.local_name)
    return f"{parsed.tenant}/{parsed.namespace}/{encode_name(base)}"


def managed_ledger_path(managed_ledger: str, root: str = MANAGED_LEDGERS_ROOT) -> str:
    """Return the znode that holds the topic's ledger list; its children are the durable cursors."""
    return f"{_checked_root(root)}/{managed_ledger_name(managed_ledger)}"


def cursor_path(managed_ledger: str, cursor: str, root: str = MANAGED_LEDGERS_ROOT) -> str:
    """Return the znode of a cursor, given its encoded name (as listed under the managed ledger)."""
    _check_segment(cursor)
    return f"{managed_ledger_path(managed_ledger, root)}/{cursor}"


def checked_schema_id(schema_id: str) -> str:
    """Return schema_id, which must be `tenant/ns/encoded`."""
    _check_length(schema_id)
    parts = schema_id.split("/")
    if len(parts) != 3:
        raise ValueError(f"{_shown(schema_id)} is not a schema id: expected tenant/namespace/encoded-topic")
    _check_entity(parts[0], "tenant")
    _check_entity(parts[1], "namespace")
    _check_local_name(decode_name(parts[2]))
    return schema_id


def schema_path(schema_id: str, root: str = SCHEMAS_ROOT) -> str:
    """Return the znode of the schema's locator."""
    return f"{_checked_root(root)}/{checked_schema_id(schema_id)}"


class Layout(StrEnum):
    """The mapping of ledger ids to znode paths, which BookKeeper's LAYOUT znode names."""

    HIERARCHICAL = "HIERARCHICAL"
    LONG_HIERARCHICAL = "LONG_HIERARCHICAL"


_LAYOUT_BY_CLASS = {
    "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory": Layout.HIERARCHICAL,
    "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory": Layout.LONG_HIERARCHICAL,
    # used with the `metadata-store:` URLs of Pulsar's bookies and brokers; the same short and long paths
    "org.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory": Layout.HIERARCHICAL,
}
# LAYOUT of format 1 contained a type name instead of a class
_LAYOUT_BY_TYPE = {"hierarchical": Layout.HIERARCHICAL, "longhierarchical": Layout.LONG_HIERARCHICAL}


def parse_layout(data: bytes) -> Layout:
    """Parse the LAYOUT znode. Raises ValueError for a layout that is not supported: we don't guess paths."""
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise ValueError("LAYOUT is not text; is this BookKeeper's ledgers root?") from None
    layouts = {"1": _LAYOUT_BY_TYPE, "2": _LAYOUT_BY_CLASS}.get(lines[0])
    if layouts is None or len(lines) < 2:
        raise ValueError(f"LAYOUT {_shown(data.decode())} is not of format 1 or 2; is this BookKeeper's ledgers root?")
    name, colon, version = lines[1].partition(":")
    if name not in layouts:
        raise ValueError(
            f"ledger manager {_shown(name)} is not supported: only hierarchical and long-hierarchical layouts are"
        )
    if not colon or version != "1":
        raise ValueError(f"ledger manager {_shown(name)} has version {_shown(version)}; only version 1 is known")
    return layouts[name]


def ledger_path(layout: Layout, root: str, ledger_id: int) -> str:
    """Return the znode of a ledger's metadata; ValueError for ids that BookKeeper does not assign."""
    parent, leaf = _ledger_node(layout, ledger_id)
    return f"{_checked_root(root)}/{parent}/{leaf}"


def ledger_id_of(layout: Layout, root: str, path: str) -> int | None:
    """Return the ledger whose metadata is at path; None if the layout keeps no ledger there."""
    prefix = f"{_checked_root(root)}/"
    digits = path.removeprefix(prefix).replace("/L", "/").replace("/", "")
    if not path.startswith(prefix) or not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    ledger_id = int(digits)
    # An id has a single path, and `path` must be exactly that, not merely contain the same digits.
    return ledger_id if ledger_id <= MAX_LEDGER_ID and ledger_path(layout, root, ledger_id) == path else None


def _ledger_node(layout: Layout, ledger_id: int) -> tuple[str, str]:
    """Return (parent below the root, child name)."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"{ledger_id} is not a ledger id: expected 0 to {MAX_LEDGER_ID}")
    if layout is Layout.HIERARCHICAL and ledger_id < FIRST_LONG_ID:
        digits = f"{ledger_id:010d}"
        return f"{digits[:2]}/{digits[2:6]}", f"L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}", f"L{digits[15:]}"


@lru_cache(maxsize=1024)  # requests of one owner come one after another, and each is parsed several times
def _parse(name: str) -> _TopicName:
    _check_length(name)
    scheme, separator, rest = name.partition("://")
    split = _split_full_name(name, scheme, rest) if separator else _split_managed_ledger(name)
    namespace, local_name, descriptor = split
    if len(namespace) not in (2, 3):
        raise ValueError(f"{_shown(name)} is not a topic: {len(namespace)} parts before the name, expected 2 or 3")
    for part in namespace:
        _check_entity(part, "tenant, cluster or namespace")
    _check_local_name(local_name)
    return _TopicName(namespace[0], namespace[-1], "/".join(namespace), local_name, descriptor)


def _split_full_name(name: str, scheme: str, rest: str) -> tuple[list[str], str, str]:
    """Return the namespace's parts, the local name, and the descriptor of a segment."""
    parts = rest.split("/")
    if scheme == SEGMENT_DOMAIN:
        _check_segment_name(name, has_parts=len(parts) == 4, descriptor=parts[-1])
        return parts[:2], parts[2], parts[3]
    if scheme != _DOMAIN:
        raise ValueError(f"{_shown(name)}: only persistent:// topics, and segments, have ledgers")
    return parts[:-1], parts[-1], ""


def _split_managed_ledger(name: str) -> tuple[list[str], str, str]:
    """Return what _split_full_name returns."""
    parts = name.split("/")
    if _is_managed_ledger_of_segment(parts):
        _check_segment_name(name, has_parts=True, descriptor=parts[4])
        return parts[:2], decode_name(parts[3]), parts[4]
    *namespace, domain, encoded = parts if "/" in name else ("", name)
    if domain != _DOMAIN:
        raise ValueError(
            f"{_shown(name)} is not a topic: expected persistent://tenant/namespace/name "
            "or tenant/namespace/persistent/encoded-name"
        )
    return namespace, decode_name(encoded), ""


def _is_managed_ledger_of_segment(parts: Sequence[str]) -> bool:
    """Whether a managed ledger has the form of a segment's, and is not a V1 topic in a namespace `segment`.

    A name that is both counts as a segment's (SegmentName.may_be_v1).
    """
    if len(parts) != 5 or parts[2] != SEGMENT_DOMAIN:
        return False
    return parts[3] != _DOMAIN or _DESCRIPTOR.fullmatch(parts[4]) is not None


def _check_segment_name(name: str, *, has_parts: bool, descriptor: str) -> None:
    match = _DESCRIPTOR.fullmatch(descriptor)
    if not has_parts or match is None or match[1] > match[2] or int(match[3]) > MAX_LEDGER_ID:
        raise ValueError(f"{_shown(name)} is not a segment: expected segment://tenant/namespace/topic/<from>-<to>-<id>")


def _check_entity(part: str, what: str) -> None:
    if not _NAMED_ENTITY.fullmatch(part) or part in (".", ".."):
        raise ValueError(f"{_shown(part)} is not a {what}: letters, digits and -=:._ only")


def _check_local_name(local_name: str) -> None:
    if "/" in local_name:
        raise ValueError(f"topic name {_shown(local_name)} contains a slash")
    _check_segment(encode_name(local_name))


def _check_segment(segment: str) -> None:
    """Refuse a name that ZooKeeper would refuse as one segment of a path, or read differently."""
    if not segment or segment in (".", ".."):
        raise ValueError(f"{_shown(segment)} cannot be the name of a znode")
    if "/" in segment:
        raise ValueError(f"{_shown(segment)} contains a slash, so it is not an encoded name")
    _check_length(segment)
    if _CONTROL_CHARACTER.search(segment):  # Pulsar encodes the control characters in names of topics and subscriptions
        raise ValueError(f"{_shown(segment)} contains a control character")


def _check_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"name of {len(name)} characters ({_shown(name)}); at most {MAX_NAME_LENGTH} are allowed")


def _checked_root(root: str) -> str:
    if not root.startswith("/") or "//" in root:
        raise ValueError(f"{_shown(root)} is not a znode path: it must start with one slash")
    return root.rstrip("/")


def _base_name(local_name: str) -> str:
    if _partition_index(local_name) < 0:
        return local_name
    base = local_name.rpartition(_PARTITION_SUFFIX)[0]
    if not base:
        raise ValueError(f"{_shown(local_name)} is a partition of a topic without a name")
    return base


def _partition_index(local_name: str) -> int:
    """Read the suffix as TopicName.getPartitionIndex: `-partition-01` and `-partition--1` are not partitions."""
    _before, separator, digits = local_name.rpartition(_PARTITION_SUFFIX)
    # Integer.parseInt accepts decimal digits of any script, but it reads UTF-16 units, so only digits in the BMP.
    if not separator or not digits.isdecimal() or max(digits) > "\uffff" or len(digits) > 10:
        return -1
    index = int(digits)
    return index if index <= 2**31 - 1 and len(str(index)) == len(digits) else -1


def _shown(text: str) -> str:
    """Quote untrusted text for a message: escaped, and short enough for a log line."""
    return ascii(text if len(text) <= 120 else f"{text[:117]}...")
