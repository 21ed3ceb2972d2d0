"""`ledger-reaper init`: tries the addresses of a cluster, and writes a first configuration with them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.options import ask, yes_or_no
from streaming.errors import ConfigError, ReaperError
from streaming.terminal import say, say_lines
from udfs.requests.lanes import Lanes

if TYPE_CHECKING:
    from streaming.check.first_configuration import Key, Step

_EXCLUSIVE = (
    "Are you sure that no other Pulsar cluster keeps its ledgers in this BookKeeper? Only then `run` starts; `check`, "
    "`space` and `audit` work without this declaration"
)


def init(  # noqa: PLR0913  typer reads each option from a parameter
    *,
    out: Annotated[Path, typer.Option("--out", help="Write the configuration to this file")] = Path("my.toml"),
    admin_url: Annotated[str, typer.Option("--admin-url", help="Admin API of the brokers")] = "",
    service_url: Annotated[str, typer.Option("--service-url", help="Binary protocol of the brokers")] = "",
    zookeeper: Annotated[str, typer.Option("--zookeeper", help="ZooKeeper servers: host:port,…/chroot")] = "",
    credentials_file: Annotated[
        str,
        typer.Option(
            "--credentials-file",
            help='File with a token, "user:password", Pulsar\'s key file for OAuth2, or a client certificate',
        ),
    ] = "",
    tls_key_file: Annotated[str, typer.Option("--tls-key-file", help="Key of the client certificate")] = "",
    oauth2_issuer_url: Annotated[str, typer.Option("--oauth2-issuer-url", help="OAuth2's issuer")] = "",
    oauth2_audience: Annotated[str, typer.Option("--oauth2-audience", help="Audience that the issuer expects")] = "",
    oauth2_scope: Annotated[str, typer.Option("--oauth2-scope", help="Scope that the issuer expects")] = "",
    ca_file: Annotated[str, typer.Option("--ca-file", help="Certificate of the brokers' authority (PEM)")] = "",
    digest_file: Annotated[str, typer.Option("--digest-file", help='File with "user:password" for ZooKeeper')] = "",
    exclusive_bookkeeper: Annotated[
        bool | None,
        typer.Option(
            "--exclusive-bookkeeper/--shared-bookkeeper",
            show_default=False,
            help="Declare that no other Pulsar cluster uses this BookKeeper, as `run` requires, or that one does",
        ),
    ] = None,
    lanes: Annotated[
        Lanes,
        typer.Option("--lanes", help="One request topic for all, or one for each tenant or namespace"),
    ] = Lanes.ONE,
    untried: Annotated[bool, typer.Option("--untried", help="Do not connect to any address")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file")] = False,
) -> None:
    """Write a first configuration file, with comments, after a trial of each address.

    On a terminal, the command asks for what the options do not name, and proposes the addresses that the brokers
    report. Without a terminal, it takes those proposals, and the first failed trial ends it. Trials read only.
    """
    from streaming.check import first_configuration as first
    from streaming.config.toml_text import commented

    if out.exists() and not force:
        raise ConfigError(f"{out} exists: give another --out, or --force to replace it")
    folder = out.absolute().parent
    given = {
        first.ADMIN_URL: admin_url,
        first.CA_FILE: _full(ca_file),
        first.CREDENTIALS: _full(credentials_file),
        first.KEY_FILE: _full(tls_key_file),
        first.ISSUER: oauth2_issuer_url,
        first.AUDIENCE: oauth2_audience,
        first.SCOPE: oauth2_scope,
        first.SERVICE_URL: service_url,
        first.DIGEST_FILE: _full(digest_file),
        first.HOSTS: zookeeper,
    }
    answers = _Dialogue(folder, is_tried=not untried).answers({key: value for key, value in given.items() if value})
    if exclusive_bookkeeper is None:
        exclusive_bookkeeper = sys.stdin.isatty() and yes_or_no(_EXCLUSIVE)
    answers |= {first.EXCLUSIVE: exclusive_bookkeeper, first.STATE: "state", first.CHECKPOINTS: "checkpoints"}
    answers[first.LANES] = lanes.value
    first.settings_of(answers, folder)
    try:
        out.write_text(commented(answers), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} can't be written: {error.strerror}") from error
    say(f"{out} is written; next: ledger-reaper check --config {out}")


class _Dialogue:
    """Asks for the keys of each step, and tries the answers. Without a terminal, proposals replace missing answers."""

    def __init__(self, folder: Path, *, is_tried: bool) -> None:
        self._folder, self._is_tried = folder, is_tried
        self._has_terminal = sys.stdin.isatty()
        self._proposed: dict[Key, str] = {}

    def answers(self, given: dict["Key", str]) -> dict["Key", Any]:
        """Return the answers to all steps. Raises the ReaperError of a failed trial if there is no terminal."""
        from streaming.check.first_configuration import STEPS, first_proposals, proposals

        self._proposed = first_proposals()
        answers: dict[Key, Any] = {}
        for step in STEPS:
            answers |= self._step(step, given, answers)
            self._proposed |= proposals(answers, self._folder, asks_brokers=self._is_tried)
        return answers

    def _step(self, step: "Step", given: dict["Key", str], before: dict["Key", Any]) -> dict["Key", Any]:
        found = self._asked(step, given, before)
        while fault := self._fault(step, before | found):
            say_lines(f"PROBLEM  {fault}", err=True)
            if self._is_valid(before | found):
                if yes_or_no("Keep it nevertheless?"):
                    break
                self._proposed |= found
            found = self._asked(step, {}, before)
        return found

    def _asked(self, step: "Step", given: dict["Key", str], before: dict["Key", Any]) -> dict["Key", Any]:
        from streaming.check.first_configuration import CREDENTIALS, credentials_in, is_needed

        found: dict[Key, Any] = {}
        for key, text in step.texts.items():
            if key in before or not is_needed(key, before | found):
                continue
            value = given.get(key) or self._proposed.get(key, "")
            if self._has_terminal and key not in given:
                value = ask(text, value)
                value = _full(value) if key[1].endswith("_file") else value
            if value and key == CREDENTIALS:
                self._proposed[key] = value
                key, proposed = credentials_in(value)  # noqa: PLW2901
                self._proposed |= proposed
            if value:
                found[key] = value
        return found

    def _fault(self, step: "Step", answers: dict["Key", Any]) -> str:
        """Try the answers and print what was seen. Return the fault; "" if there is none."""
        from streaming.check.first_configuration import settings_of

        try:
            settings = settings_of(answers, self._folder)
            if self._is_tried:
                say_lines(f"ok       {step.trial(settings)}", err=True)
        except ReaperError as error:
            if not self._has_terminal:
                raise
            return str(error)
        return ""

    def _is_valid(self, answers: dict["Key", Any]) -> bool:
        """Whether commands would accept a file with these answers."""
        from streaming.check.first_configuration import settings_of

        try:
            settings_of(answers, self._folder)
        except ConfigError:
            return False
        return True


def _full(file: str) -> str:
    """Return the absolute path of a file that the operator named relative to the working directory.

    In the configuration, a relative path would be relative to the configuration's folder.
    """
    return str(Path(file).absolute()) if file else ""
