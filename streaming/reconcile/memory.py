"""Which ledgers of a partition held unread messages at the last look, and which lost ones a person has accepted.

Two files in state.dir: the service writes `accounts.json`, and `ledger-reaper accept --gaps` writes
`accounts-accepted.json`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of

_UNREAD = "accounts.json"
_ACCEPTED = "accounts-accepted.json"

Unread = dict[str, dict[int, int]]  # partition -> ledger -> its entries


class UnreadMemory:
    """The two files of one state directory. Every method raises UnavailableError where it can't read or write."""

    def __init__(self, state_dir: str) -> None:
        self._folder = folder_of(state_dir)

    def recall(self) -> Unread:
        """What was unread at the last look, without the ledgers that a person has accepted since."""
        accepted = self._accepted()
        known: Mapping[str, Mapping[str, int]] = self._read(_UNREAD)
        return {
            partition: {int(ledger): n for ledger, n in each.items() if int(ledger) not in accepted.get(partition, ())}
            for partition, each in known.items()
        }

    def remember(self, unread: Unread) -> None:
        """Keep what is unread now for the next look."""
        self._write(_UNREAD, {partition: each for partition, each in unread.items() if each})

    def accept(self, lost: Mapping[str, Sequence[int]]) -> None:
        """Raise no alarm any more for these ledgers (partition -> ledgers).

        Earlier acceptances stay as long as the service may still remember their ledgers.
        """
        known, before = self._read(_UNREAD), self._accepted()
        accepted = {
            partition: {ledger for ledger in ledgers if str(ledger) in known.get(partition, ())}
            for partition, ledgers in before.items()
        }
        for partition, ledgers in lost.items():
            accepted.setdefault(partition, set()).update(ledgers)
        self._write(_ACCEPTED, {partition: sorted(ledgers) for partition, ledgers in accepted.items() if ledgers})

    def _accepted(self) -> Mapping[str, Sequence[int]]:
        known: Mapping[str, Sequence[int]] = self._read(_ACCEPTED)
        return known

    def _read(self, name: str) -> Any:
        content = self._folder.read(name)
        if content is None:
            return {}
        try:
            return json.loads(content)
        except ValueError as error:
            path = f"{self._folder.root}/{name}"
            raise UnavailableError(f"{path} can't be read: {error}; remove it to begin anew") from error

    def _write(self, name: str, known: Mapping[str, Any]) -> None:
        self._folder.write(name, json.dumps(known).encode())
