"""Commands that read the state directory refuse one that is not there: it would look as if nothing had happened."""

from pathlib import Path
from typing import TYPE_CHECKING

from streaming.cli.options import settings_of
from streaming.errors import ConfigError

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

    from streaming.state.filesystem import open_filesystem, shown

    filesystem, path = open_filesystem(settings.state.dir)
    if filesystem.get_file_info(path).type is not FileType.Directory:
        raise ConfigError(
            f"the state directory {shown(settings.state.dir)} does not exist. The key state.dir in {config} names it, "
            "and the service makes it at its first start: did it run with this configuration, on this machine?"
        )
