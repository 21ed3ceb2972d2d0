"""A command refuses an option that the other options make useless, before it asks or changes anything."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.errors import ConfigError
from tests.unit.cli.test_confirmation import config_at


@pytest.mark.parametrize(
    ("command", "ignored", "remedy"),
    [
        # an audit that does not search for orphans, or does not search again
        ("audit --verify-only --publish", "--publish", "Leave out --verify-only"),
        ("audit --verify-only --older-than 7d", "--older-than", "Leave out --verify-only"),
        ("audit --verify-only --max-bytes 5G", "--max-bytes", "Leave out --verify-only"),
        ("audit --before-removing b:3181", "--before-removing", "Add --verify-only"),
        ("audit --verify-only --before-removing b:3181 --last", "--last", "Leave out --before-removing"),
        ("audit --verify-only --before-removing b:3181 --tenant shop", "--tenant", "Leave out --before-removing"),
        ("audit --verify-only --before-removing b:3181 --watch 6h", "--watch", "Leave out --before-removing"),
        ("audit --verify-only --before-removing b:3181 --publish", "--publish", "Leave out --verify-only"),
        ("audit --last --verify-only", "--verify-only", "Leave out --last"),
        ("audit --last --recheck-seconds 5", "--recheck-seconds", "Leave out --last"),
        ("audit --last --reads-per-second 50000", "--reads-per-second", "Leave out --last"),
        ("audit --last --no-space", "--no-space", "Leave out --last"),
        ("audit --verify-only --space", "--space", "Leave out --verify-only"),
        ("audit --last --watch 6h", "--watch", "leave out one of these options"),
        ("audit --publish-per-second 500", "--publish-per-second", "Add --publish"),
        ("snapshots audit --verify-only --publish", "--publish", "Leave out --verify-only"),
        # a namespace of another tenant, or an invalid name: nothing would be found, as if all were well
        ("audit --tenant shop --namespace t/ns", "--namespace t/ns", "leave out --tenant"),
        ("audit --namespace shop", "--namespace shop", "shop/prod"),
        ("audit --tenant shop/prod", "--tenant shop/prod", "--namespace"),
        ("snapshots audit --tenant shop --namespace t/ns", "--namespace t/ns", "leave out --tenant"),
        ("snapshots guard --yes --tenant shop --namespace t/ns", "--namespace t/ns", "leave out --tenant"),
        ("snapshots guard --yes --namespace t/", "--namespace t/", "shop/prod"),
        ("snapshots repair --yes --namespace shop", "--namespace shop", "shop/prod"),
        ("snapshots undo --yes --namespace shop", "--namespace shop", "shop/prod"),
        ("snapshots compact --yes --namespace shop", "--namespace shop", "shop/prod"),
        # options of a topic together with a namespace
        ("snapshots repair --yes --namespace t/ns --republish", "--republish", "belongs to --topic"),
        ("snapshots repair --yes --namespace t/ns --replay", "--replay", "belongs to --topic"),
        ("snapshots undo --yes --namespace t/ns --removed", "--removed", "belongs to --topic"),
        ("snapshots undo --yes --namespace t/ns --migrated", "--migrated", "belongs to --topic"),
        ("snapshots undo --yes --topic a --removed --migrated", "--migrated", "once for each"),
        # all dead letters together with some of them
        ("dlq replay --yes --all --reason IN_USE", "--all", "leave out --all"),
        ("dlq replay --yes --all 1:2:3", "--all", "leave out --all"),
        ("dlq write-off --yes --all --why x --owner shop", "--all", "leave out --all"),
        # options that only waiting, watching and serving use
        ("request --timeout 5", "--timeout", "Add --wait"),
        ("request --json", "--json", "Add --wait"),
        ("status --every 2", "--every", "Add --watch"),
        ("rocketmq follow --metrics-address 127.0.0.1", "--metrics-address", "Add --metrics-port"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_with_a_remedy(
    command: str, ignored: str, remedy: str, tmp_path: Path
) -> None:
    words = command.split()
    if words[0] != "rocketmq":
        words += ["--config", str(config_at(tmp_path))]
    result = CliRunner().invoke(app, words, input="")
    assert isinstance(result.exception, ConfigError), (result.output, result.exception)
    assert ignored in str(result.exception)
    assert remedy in str(result.exception)
