"""`ledger-reaper backlog`."""

from streaming.arrow import load_datasets
from streaming.cli.options import Config, Json, settings_of
from streaming.terminal import say, say_json


def backlog(config: Config, json_lines: Json = False) -> None:
    """Count the requests that wait, for each topic, retries included.

    This is what PIP-186 calls the estimated in-flight count.
    """
    load_datasets()
    from streaming.clients import command_clients
    from streaming.reconcile.backlog_count import backlog_of
    from streaming.topics.existing import lane_partitions

    settings = settings_of(config)
    with command_clients(settings) as clients:
        counted = backlog_of(settings, clients.pulsar, lanes=lane_partitions(clients.store, settings))
    if json_lines:
        say_json(counted)
        return
    for topic, messages in counted["topics"].items():
        say(f"{messages:>12}  {topic}")
    say(f"{counted['messages']:>12}  in all")
    if counted["lanes_not_counted"]:
        say(f"{counted['lanes_not_counted']:>12}  partitions of lanes are not counted: too many, or not readable")
