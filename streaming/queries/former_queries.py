"""Takes over the positions of queries whose topics are read in passes now (deletion/lanes).

A query reads a topic while it is listed, and earlier versions had a query for each topic that matches the pattern. In
passes, the position is the subscription's cursor. The connector moves that cursor to the oldest message at each start,
so without the checkpoint's position, passes would compare all stored messages with their receipts.
"""

import logging
from collections.abc import Collection

from streaming.config.settings import Settings
from streaming.queries.checkpoints import (
    DamagedCheckpointError,
    committed_positions,
    delete_file,
    location_of,
    newest_number,
    root_of,
)
from streaming.queries.names import further_query, short_name_of
from streaming.queries.short_names import adopt_short_name
from streaming.state.filesystem import folder_of
from udfs.formats.internal_stats import Position
from udfs.paths import base_topic

log = logging.getLogger("ledger-reaper")


def positions_of_queries(settings: Settings, topics: Collection[str]) -> dict[str, Position]:
    """Return by partition the last entry that a former query of these topics has committed; none of them may run.

    The position of a damaged checkpoint is left out: then receipts are compared. Raises UnavailableError.
    """
    if not topics:  # as mostly, and the store may be S3
        return {}
    folders = {*folder_of(root_of(settings)).folders()}
    positions: dict[str, Position] = {}
    for topic in topics:
        query = further_query(topic)
        if folders.isdisjoint((query.name, str(short_name_of(query)))):
            continue
        checkpoint = location_of(settings, query.name)
        try:
            adopt_short_name(settings, query)
            _forget_unfinished(checkpoint)
            committed = committed_positions(checkpoint)
        except DamagedCheckpointError as error:
            # a store that is only away now is asked again: messages older than receipts_days have no receipts
            log.warning("%s: its messages are compared with the receipts: %s", topic, error)
            continue
        positions |= {partition: at for partition, at in committed.items() if base_topic(partition) == topic}
    return positions


def _forget_unfinished(checkpoint: str) -> None:
    """Remove a batch that is not committed.

    If the topic is listed later, its query would run this batch first, and compare only a first batch with the receipts
    of the passes.
    """
    newest = newest_number(checkpoint, "offsets")
    if newest > newest_number(checkpoint, "commits"):
        delete_file(folder_of(checkpoint), f"offsets/{newest}")
