"""Commands that read the state directory refuse one that is not there: it would look as if nothing had happened."""

from pathlib import Path
from typing import TYPE_CHECKING

from streaming.cli.options import settings_of
from streaming.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def settings_with_state(config: Path) -> "Settings":
    """Load the configuration. Raises ConfigError, also if the state directory does not exist."""
    settings = settings_of(config)
    require_state(settings, config)
    return settings


def require_state(settings: "Settings", config: Path) -> None:
    """Raise ConfigError, which names the key, if the state directory does not exist."""
    from pyarrow.fs import FileType

    from streaming.config.stores import is_on_s3
    from streaming.state.filesystem import open_filesystem

    filesystem, path = open_filesystem(settings.state_dir)
    try:
        found = filesystem.get_file_info(path).type
    except OSError as error:
        raise UnavailableError(f"the state directory {settings.state.dir} can't be looked at: {error}") from error
    if found is not FileType.Directory:
        where = "" if is_on_s3(settings.state.dir) else ", on this machine"
        raise ConfigError(
            f"the state directory {settings.state.dir} does not exist. The key state.dir in {config} names it, "
            f"and the service makes it at its first start: did it run with this configuration{where}?"
        )
