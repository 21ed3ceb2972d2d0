"""The epoch: a znode whose version every delete checks, so that an earlier run of an instance can delete nothing.

streaming/sweep/ledgers.py puts the check into each ZooKeeper transaction;
streaming/sweep/tiered_storage/offloads.py compares the version right before it deletes objects, and
streaming/sweep/snapshots/snapshot_sweep.py right before it sends each tombstone; streaming/deletion/gate.py compares it
before each chunk, and streaming/state/waiting.py when it takes over the waiting retries. The outbox
(streaming/deletion/chunks/outbox.py) stops at a chunk of this run whose receipts have another epoch.
"""

import json
import os
from dataclasses import dataclass
from typing import Self

from streaming.clock import Clock, SystemClock
from streaming.coordination.identity import iso_time, operator_name
from streaming.coordination.own_znodes import read_own, write_own
from streaming.errors import SafetyError
from streaming.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class Epoch:
    """Proves that no later run of this instance has started. Every GuardedDelete checks its path and version."""

    store: MetadataStore
    path: str
    version: int  # of the znode

    @classmethod
    def bump(cls, store: MetadataStore, root: str, name: str, *, clock: Clock | None = None) -> Self:
        """Start a new epoch; from now on no guarded delete of an earlier epoch succeeds.

        Raises UnavailableError, and SafetyError if the znode disappears while it is written.
        """
        path = f"{root}/instances/{name}/epoch"
        data = json.dumps(
            {"who": operator_name(), "pid": os.getpid(), "since": iso_time(clock or SystemClock())}
        ).encode()
        version = write_own(store, path, data)
        if version is None:
            raise SafetyError(
                f"{path} was deleted while this instance started: find out which program deletes below {root}, and "
                "start again"
            )
        return cls(store, path, version)

    def still_mine(self) -> bool:
        """Whether no later run has started. Raises UnavailableError if that is unknown."""
        node = read_own(self.store, self.path)
        return node is not None and node.version == self.version
