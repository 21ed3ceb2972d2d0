"""Finds the segments of scalable topics that the layouts of their topics do not name."""

from collections.abc import Iterable, Sequence
from itertools import islice

from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.formats.errors import FormatError
from udfs.formats.segment_layout import parse_layout
from udfs.paths import SegmentName, layout_path, segments_among

_LAYOUTS_PER_READ = 500


def unnamed_segments(store: MetadataStore, managed_ledgers: Iterable[str]) -> list[str]:
    """Return the segments that no layout names, without those whose layout can't be read. Raises UnavailableError."""
    by_topic: dict[str, list[tuple[str, SegmentName]]] = {}
    for name, segment in segments_among(managed_ledgers).items():
        by_topic.setdefault(segment.topic, []).append((name, segment))
    unnamed: list[str] = []
    topics = iter(by_topic)
    while batch := list(islice(topics, _LAYOUTS_PER_READ)):
        for topic, node in zip(batch, store.read_many([layout_path(each) for each in batch]), strict=True):
            unnamed += _unnamed(by_topic[topic], node)
    return unnamed


def _unnamed(segments: Sequence[tuple[str, SegmentName]], node: Znode | Unreadable | None) -> list[str]:
    if isinstance(node, Unreadable):
        return []
    if node is None:
        return [name for name, _segment in segments]
    try:
        layout = parse_layout(node.data)
        return [name for name, segment in segments if not layout.names(segment)]
    except FormatError:
        return []
