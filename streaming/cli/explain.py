"""`ledger-reaper explain`: shows one ledger, or what a topic stores and which of its ledgers are missing."""

from functools import partial
from typing import Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.options import READS_PER_SECOND, Config, Json, ReadsPerSecond, settings_of, state_fault
from streaming.config.amounts import topic_from
from streaming.errors import ConfigError
from udfs.paths import MAX_LEDGER_ID


def explain(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    ledger_id: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Ledger id", min=0, max=MAX_LEDGER_ID, show_default=False)
    ] = None,
    ledger: Annotated[
        int | None, typer.Option("--ledger", help="Ledger id, given as an option", min=0, max=MAX_LEDGER_ID)
    ] = None,
    topic: Annotated[
        str, typer.Option("--topic", help="A topic with its partitions, for example shop/prod/carts")
    ] = "",
    reads_per_second: ReadsPerSecond = READS_PER_SECOND,
    json_lines: Json = False,
) -> None:
    """Show what a ledger is, which topic refers to it, and how the service would answer a request to delete it.

    If the ledger does not exist, the command searches all topics, cursors and schemas in ZooKeeper for its id.

    With --topic, the command shows what the topic stores, by cause; which of its ledgers are missing, and which
    subscriptions need them; what a broker does about that; and which commands restore or skip the missing data. The
    exit code is 4 if a ledger is missing, or if something could not be read.

    Nothing is changed, and no topic is loaded.
    """
    chosen = ledger if ledger_id is None else ledger_id
    if topic and chosen is not None:
        raise ConfigError("name either a ledger or a topic: leave out the ledger, or --topic")
    if not topic and (chosen is None or None not in (ledger_id, ledger)):
        raise ConfigError(
            "name one ledger, as in `ledger-reaper explain 4711`, or a topic, as in "
            "`ledger-reaper explain --topic shop/prod/carts`"
        )
    name = topic_from(topic, "--topic") if topic else ""
    settings = settings_of(config)
    fault = partial(state_fault, settings, config)
    load_datasets()
    if name:
        from streaming.space.explain.explain_topic import explain_topic

        explain_topic(settings, name, as_json=json_lines, reads_per_second=reads_per_second, state_fault=fault)
    elif chosen is not None:
        from streaming.space.explain.explain_ledger import explain_ledger

        explain_ledger(settings, chosen, as_json=json_lines, reads_per_second=reads_per_second, state_fault=fault)
