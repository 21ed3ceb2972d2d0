"""The note that names the parked queries with the reasons, for other processes: `check`, `receipts` and `status`.

All lanes that are not read are one query of the topic ALL_LANES.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streaming.state.notes.note import Note
from udfs.requests.lanes import ALL_LANES


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedQuery:
    """A query that failed and does not read its topic again yet."""

    topic: str
    why: str  # the failure, in one line
    since_ms: int
    failures: int = 0  # failed tries in a row
    is_read: bool = False  # whether the fallback processes the topic's messages

    def shown(self, since: str) -> str:
        """Return the sentence for an operator; `since` is the text for since_ms."""
        if self.topic == ALL_LANES:
            return f"lanes have not been read since {since} UTC: {self.why}"
        how = "read without the connector" if self.is_read else "parked (its requests wait)"
        return f"{self.topic} has been {how} since {since} UTC: {self.why}"


def _decode(parked: Any) -> dict[str, ParkedQuery]:
    return {str(name): _query(fields) for name, fields in parked.items()}


def _query(fields: Mapping[str, object]) -> ParkedQuery:
    return ParkedQuery(
        topic=str(fields["topic"]),
        why=str(fields["why"]),
        since_ms=int(str(fields["since_ms"])),
        failures=int(str(fields["failures"])),
        is_read=fields["is_read"] is True,
    )


_NOTE: Note[Mapping[str, ParkedQuery]] = Note(
    "lanes.json",
    encode=lambda parked: {name: asdict(query) for name, query in parked.items()},
    decode=_decode,
)


def note(state_dir: str, parked: Mapping[str, ParkedQuery]) -> None:
    """Write the parked queries by name, or delete the note if there are none. A failure to do so is ignored."""
    _NOTE.try_write(state_dir, parked or None)


def noted(state_dir: str) -> Mapping[str, ParkedQuery]:
    """Return the parked queries of the newest note; none if there is no note or it can't be read."""
    return _NOTE.try_read(state_dir) or {}
