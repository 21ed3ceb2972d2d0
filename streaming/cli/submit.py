"""`ledger-reaper submit-args`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.options import Config, Json, completes, settings_of
from streaming.terminal import say, say_json


def submit_args(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command to run on the cluster, with its options, after `--`", show_default="run"),
    ] = None,
    master: Annotated[str, typer.Option("--master", help="Spark's master URL", show_default="spark.master")] = "",
    deploy_mode: Annotated[
        str,
        typer.Option(
            "--deploy-mode",
            help="Where the driver runs: client (this machine) or cluster",
            autocompletion=completes(("client", "cluster")),
        ),
    ] = "client",
    dist: Annotated[Path, typer.Option("--dist", help="Folder that `make dist` built")] = Path("dist"),
    image: Annotated[str, typer.Option("--image", help="Container image, for Kubernetes")] = "",
    secret: Annotated[
        str, typer.Option("--secret", help="Kubernetes secret with the files that the configuration names")
    ] = "",
    driver_host: Annotated[
        str, typer.Option("--driver-host", help="Address at which executors reach the driver", show_default="Spark's")
    ] = "",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", help="Spark property, key=value; may be given several times")
    ] = None,
    unless_local: Annotated[bool, typer.Option("--unless-local", help="Print nothing if the master is local")] = False,
    as_json: Json = False,
) -> None:
    """Print the spark-submit line that runs the service on a Spark cluster, with what `make dist` built.

    The line contains no secret: driver and executors read the files that the configuration names. The requirements of
    every host are printed on standard error.
    """
    settings = settings_of(config)
    from streaming.spark.session import fetched_jars
    from streaming.spark.submission import Submission, arguments, needs
    from streaming.spark.submitted import is_local

    chosen = master or settings.spark.master
    if unless_local and is_local(chosen):
        return
    built = dist / "jars"
    jars = fetched_jars(settings, built.absolute() if built.is_dir() and not image else None)
    submission = Submission(
        settings=settings,
        config=config,
        jars=(*jars.everywhere, *jars.driver),
        master=chosen,
        deploy_mode=deploy_mode,
        dist=dist,
        image=image,
        secret=secret,
        driver_host=driver_host,
        conf=conf or (),
        command=command or ("run",),
    )
    line = arguments(submission)
    if as_json:
        say_json(line)
    else:
        say(shlex.join(line))
    for need in needs(submission):
        say(need, err=True)
