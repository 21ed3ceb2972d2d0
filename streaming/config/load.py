"""Reads the configuration and reports every fault at once.

1. conf/default.toml has every key; the operator's file overrides it, and the environment overrides both.
2. A relative path in the operator's file, or in a default, is relative to the folder of the operator's file, so that
   every command uses the same directories, wherever it is started. A relative path in the environment, or in a default
   when there is no operator's file, is relative to the working directory.
"""

import json
import logging
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
    TomlConfigSettingsSource,
)

from streaming.config.amounts import duration_text
from streaming.config.combinations import faults_of
from streaming.config.fault_messages import messages_of, unknown_variables, variable_of
from streaming.config.sections import OLDER_KEYS, duration_keys, path_keys
from streaming.config.settings import Settings
from streaming.errors import ConfigError

log = logging.getLogger("ledger-reaper")

CONF = Path(__file__).parents[2] / "conf"  # next to the packages, both in a checkout and in a wheel
_DEFAULTS = CONF / "default.toml"
_USED = "cluster.json"  # a start leaves this file in each of its directories (coordination/identity.py)


def load(path: str | Path | None) -> Settings:
    """Read default.toml, then the file, then the environment. Raises ConfigError with every fault."""
    file = None if path is None else Path(path).absolute()
    if file is not None and not file.is_file():
        is_folder = ": it is a folder" if file.is_dir() else ""
        raise ConfigError(f"there is no configuration file {path}{is_folder}; `ledger-reaper init` writes a first one")
    source = file or _DEFAULTS
    for message in unknown_variables(os.environ):
        log.warning("%s", message)
    try:
        settings = Settings.model_construct(**dict(_from_sources(file)()))
    except ValidationError as error:
        environment, defaults = EnvSettingsSource(Settings)(), _Toml(Settings, _DEFAULTS, Path.cwd())()
        raise ConfigError(_text(source, messages_of(error, environment, defaults))) from error
    except SettingsError as error:
        raise ConfigError(f'the environment can\'t be used: {error}; write lists as JSON: ["a"]') from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{source} can't be read: {error}") from error
    if faults := [*faults_of(settings), *_moved_directories(settings, file)]:
        raise ConfigError(_text(source, faults))
    return settings


def load_values(values: Mapping[str, Mapping[str, Any]], folder: Path) -> Settings:
    """Return the settings of a file in `folder` with these values, by section and key; no variable overrides them.

    Raises ConfigError with every fault.
    """
    try:
        settings = Settings.model_construct(**dict(_from_values(values, folder)()))
    except ValidationError as error:
        defaults = _Toml(Settings, _DEFAULTS, folder)()
        raise ConfigError("\n".join(messages_of(error, {}, defaults))) from error
    if faults := faults_of(settings):
        raise ConfigError("\n".join(faults))
    return settings


def default_lines() -> list[str]:
    """Return the lines of conf/default.toml, which explains every key."""
    return _DEFAULTS.read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """A key with the value that counts."""

    section: str
    key: str
    value: Any  # in the form of a configuration file: text, number, true or false, list or table
    source: str  # "default", the operator's file, or a variable's name


def effective_values(path: str | Path | None) -> list[EffectiveValue]:
    """Return every key of the configuration, in the order of conf/default.toml. Raises ConfigError as `load` does."""
    settings, file = load(path), None if path is None else Path(path).absolute()
    written = {} if file is None else _Toml(Settings, file, file.parent)()
    set_here = EnvSettingsSource(Settings)()
    return [
        EffectiveValue(section, key, value, _source(section, key, set_here, written, str(path)))
        for section, part in settings
        for key, value in _in_file_form(part)
    ]


def _source(section: str, key: str, environment: Mapping[str, Any], written: Mapping[str, Any], file: str) -> str:
    if key in environment.get(section, ()):
        return variable_of((section, key))
    return file if {key, *OLDER_KEYS.get((section, key), ())} & {*written.get(section, ())} else "default"


def _in_file_form(section: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield (key, value); the value in a configuration file would give the section's value."""
    durations = duration_keys(type(section))
    for key, value in json.loads(section.model_dump_json(exclude_none=True)).items():
        yield key, duration_text(value) if key in durations else value


def _moved_directories(settings: Settings, file: Path | None) -> list[str]:
    """Refuse a new directory if the working directory, where earlier versions resolved paths, has an old one."""
    if file is None:
        return []
    faults = []
    for key, location in (("state.dir", settings.state.dir), ("checkpoints.dir", settings.checkpoints.dir)):
        new, folder = Path(location), file.parent.resolve()
        old = Path.cwd() / new.relative_to(folder) if new.is_relative_to(folder) else new
        # a start with empty directories would forget what the earlier runs have accepted, deleted and delayed
        if old != new and (old / _USED).is_file() and not new.exists():
            faults.append(
                f"{key}: a relative path is relative to the folder of the configuration file, which gives {new}. That "
                f"directory does not exist, while {old} belongs to an earlier run: give the full path of the right "
                "directory, or create the new one yourself to start from scratch"
            )
    return faults


def _from_sources(file: Path | None) -> type[Settings]:
    here = Path.cwd()
    folder = file.parent.resolve() if file is not None else here

    class _FromSources(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del init_settings, env_settings, dotenv_settings, file_secret_settings
            files = [file, _DEFAULTS] if file is not None else [_DEFAULTS]
            return (_Environment(settings_cls, here), *(_Toml(settings_cls, toml, folder) for toml in files))

    return _FromSources


def _from_values(values: Mapping[str, Mapping[str, Any]], folder: Path) -> type[Settings]:
    class _FromValues(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            given = InitSettingsSource(settings_cls, _absolute(values, folder))
            return given, _Toml(settings_cls, _DEFAULTS, folder)

    return _FromValues


class _Toml(TomlConfigSettingsSource):
    """A file whose paths are relative to `folder`."""

    def __init__(self, settings_cls: type[BaseSettings], file: Path, folder: Path) -> None:
        super().__init__(settings_cls, file)
        self._folder = folder

    def __call__(self) -> dict[str, Any]:
        return _absolute(super().__call__(), self._folder)

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return tomllib.loads(file_path.read_bytes().decode("utf-8-sig"))  # editors on Windows write a BOM


class _Environment(EnvSettingsSource):
    """Environment variables whose paths are relative to `folder`."""

    def __init__(self, settings_cls: type[BaseSettings], folder: Path) -> None:
        super().__init__(settings_cls)
        self._folder = folder

    def __call__(self) -> dict[str, Any]:
        return _absolute(super().__call__(), self._folder)


def _absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with absolute paths; URIs and empty values are unchanged."""
    absolute = dict(values)
    for section, keys in _PATH_KEYS.items():
        if isinstance(part := absolute.get(section), Mapping):
            below = {key: str(folder / part[key]) for key in keys if _is_path(part.get(key))}
            absolute[section] = {**part, **below}
    return absolute


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "://" not in value


_PATH_KEYS = {name: path_keys(field.annotation) for name, field in Settings.model_fields.items()}


def _text(source: Path, faults: list[str]) -> str:
    is_environment = all(fault.startswith("the variable ") for fault in faults)
    name = "the environment" if is_environment else str(source)
    return "\n".join([f"{name} can't be used:", *(f"  {fault}" for fault in faults)])
