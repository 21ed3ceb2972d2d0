"""The whole configuration as one frozen value.

streaming.config.sections declares the keys, and conf/default.toml explains every key. The configuration contains no
secret: secrets are in files or in the environment of the libraries that use them.
"""

from pydantic_settings import BaseSettings, SettingsConfigDict

from streaming.config.sections import (
    AuditSettings,
    CheckpointSettings,
    InUseSettings,
    LimitSettings,
    MetricsSettings,
    NotifySettings,
    PulsarSettings,
    SafetySettings,
    ServiceSettings,
    SnapshotSettings,
    SpaceSettings,
    SparkSettings,
    StateSettings,
    StoreSettings,
    TieredStorageSettings,
    TopicSettings,
    TwoPhaseSettings,
    WatchSettings,
    ZooKeeperSettings,
)
from streaming.config.stores import located


class Settings(BaseSettings):
    """A field for each section. streaming.config.load creates it, and refuses combinations that can't work."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix="LEDGER_REAPER__",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    service: ServiceSettings
    pulsar: PulsarSettings
    zookeeper: ZooKeeperSettings
    topics: TopicSettings
    two_phase: TwoPhaseSettings
    safety: SafetySettings
    limits: LimitSettings
    in_use: InUseSettings
    tiered_storage: TieredStorageSettings
    audit: AuditSettings
    space: SpaceSettings
    snapshots: SnapshotSettings
    watch: WatchSettings
    state: StateSettings
    checkpoints: CheckpointSettings
    s3: StoreSettings
    spark: SparkSettings
    metrics: MetricsSettings
    notify: NotifySettings

    @property
    def state_dir(self) -> str:
        """The location of the state, in the form for streaming.state; state.dir is the operator's text."""
        return located(self.s3, self.state.dir)
