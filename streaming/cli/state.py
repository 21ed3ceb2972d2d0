"""Lets commands refuse a missing state directory, which they would otherwise read as if nothing had happened."""

from pathlib import Path
from typing import TYPE_CHECKING

from streaming.cli.options import settings_of
from streaming.errors import ConfigError, ReaperError, UnavailableError

if TYPE_CHECKING:
    from streaming.config.settings import Settings


class NoStateError(UnavailableError):
    """There is no state directory: the service has not run yet, or runs elsewhere."""


def settings_with_state(config: Path) -> "Settings":
    """Load the configuration. Raises ConfigError, also if the state directory does not exist."""
    settings = settings_of(config)
    require_state(settings, config)
    return settings


def require_state(settings: "Settings", config: Path) -> None:
    """Raise ConfigError, which names the key, if there is no state directory; UnavailableError if this is unknown."""
    if isinstance(fault := state_fault(settings, config), NoStateError):
        raise ConfigError(str(fault))
    if fault:
        raise fault


def state_fault(settings: "Settings", config: Path) -> ReaperError | None:
    """Return why the state directory can't be read; None if it exists.

    The error is a NoStateError if there is none, a ConfigError if a file has its name, and an UnavailableError if a
    service does not answer.
    """
    from pyarrow.fs import FileType

    from streaming.config.stores import is_on_s3
    from streaming.state.filesystem import open_filesystem

    try:
        filesystem, path = open_filesystem(settings.state_dir)
        file_type = filesystem.get_file_info(path).type
    except OSError as error:
        return UnavailableError(f"the state directory {settings.state.dir} can't be read: {error}")
    if file_type is FileType.Directory:
        return None
    named = f"The key state.dir in {config} names it"
    if file_type is not FileType.NotFound:
        return ConfigError(f"{settings.state.dir} is a file, not a directory. {named}: name a directory")
    where = "" if is_on_s3(settings.state.dir) else ", on this machine"
    return NoStateError(
        f"the state directory {settings.state.dir} does not exist. {named}, and the service creates it at its first "
        f"start: did it run with this configuration{where}?"
    )
