"""The properties of name server and broker: small files, so that a few thousand messages fill many of them."""

from streaming.sandbox.rocketmq.broker_home import (
    BROKER_NAME,
    CLUSTER_NAME,
    RocketHome,
    RocketPart,
    RocketSpec,
    StoreMode,
)

COMMIT_LOG_FILE_BYTES = 1 << 20
CONSUME_QUEUE_FILE_BYTES = 4000  # of 200 units
_MODES: dict[StoreMode, dict[str, object]] = {
    StoreMode.FILE: {"storeType": "default"},
    StoreMode.BOTH: {"storeType": "default", "rocksdbCQDoubleWriteEnable": True},
    StoreMode.ROCKSDB: {"storeType": "defaultRocksDB"},
}
# Since 5.5.0 a broker does not start with both kinds of queues unless LMQ queues are in RocksDB as well.
_LMQ_IN_BOTH = {version: {"combineCQUseRocksdbForLmq": True} for version in ("5.5.0", "5.5.1")}


def settings(home: RocketHome, part: RocketPart, spec: RocketSpec) -> dict[str, object]:
    """Return the part's properties; those of the RocketSpec override the defaults."""
    if part is RocketPart.NAME_SERVER:
        return {"listenPort": spec.ports["nameserver"], "bindAddress": spec.address}
    more = _LMQ_IN_BOTH.get(spec.version, {}) if spec.mode is StoreMode.BOTH else {}
    return {**_broker(home, spec), **_MODES[spec.mode], **more, **spec.settings}


def _broker(home: RocketHome, spec: RocketSpec) -> dict[str, object]:
    return {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": BROKER_NAME,
        "brokerId": 0,
        "brokerIP1": spec.address,
        "bindAddress": spec.address,
        "namesrvAddr": spec.name_server,
        "listenPort": spec.ports["broker"],
        "fastListenPort": spec.ports["broker_fast"],
        "haListenPort": spec.ports["broker_ha"],  # on every address, regardless of bindAddress
        "storePathRootDir": home.store,
        "storePathCommitLog": home.store / "commitlog",
        "storePathIndex": home.store / "index",
        "mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES,
        "mappedFileSizeConsumeQueue": CONSUME_QUEUE_FILE_BYTES,
        "maxMessageSize": COMMIT_LOG_FILE_BYTES // 4,
        "autoCreateTopicEnable": False,
        "enableLmq": True,
        "enableMultiDispatch": True,
        "diskMaxUsedSpaceRatio": 95,
        "waitTimeMillsInSendQueue": 10_000,  # with the default, 200, a broker on a busy machine refuses messages
    }
