"""Reads the configuration: defaults, then the operator's file, then the environment; names every fault at once."""

from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

from streaming.config.settings import Settings
from streaming.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf"  # beside the packages, in a checkout and in a wheel alike


def load(path: str | Path | None) -> Settings:
    """Read default.toml, then the file, then the environment. Raises ConfigError naming every fault at once."""
    sources = [CONF / "default.toml"]
    if path is not None:
        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"no configuration at {file}: write one (conf/production.example.toml is a start)")
        sources.append(file)

    class _FromFiles(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del init_settings, dotenv_settings, file_secret_settings
            named = [TomlConfigSettingsSource(settings_cls, source) for source in reversed(sources)]
            return (env_settings, *named)

    try:
        return Settings.model_construct(**dict(_FromFiles()))
    except ValidationError as error:
        raise ConfigError(_explain(error, sources[-1])) from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{sources[-1]} can't be read: {error}") from error


def _explain(error: ValidationError, source: Path) -> str:
    lines = [f"{source} can't be used:"]
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"]) or "(combination)"
        text = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"]
        lines.append(f"  {key}: {text}")
    return "\n".join(lines)
