"""The configuration of each part: small, on one address, and without the delays before garbage becomes visible.

Keys that are not named here keep the defaults of Pulsar's code.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from streaming.errors import ConfigError
from streaming.sandbox.home import BUCKET, CLUSTER_NAME, LEDGERS_ROOT, REGION, Home, Instance, Part, Spec, addresses

# 10 s: short enough that a killed broker's or bookie's znodes vanish soon, long enough for a busy two-core machine.
SESSION_MS = 10_000
_COPIES = 2  # of each entry, if there are enough bookies; one of three bookies may die
_BUNDLES_PER_BROKER = 4
_BROKER = "org.apache.pulsar.broker"


def render(values: Mapping[str, object]) -> str:
    """Format settings as Java properties, one per line."""
    return "".join(f"{key}={_text(value)}\n" for key, value in values.items())


def settings(home: Home, part: Instance, spec: Spec, pulsar: Path) -> dict[str, object]:
    """Return the part's configuration as keys and values."""
    match part.kind:
        case Part.ZOOKEEPER:
            return zookeeper(home, part, spec)
        case Part.BOOKIE:
            return bookie(home, part, spec)
        case Part.BROKER:
            return {**broker(home, part, spec, pulsar), **spec.broker_settings}
        case Part.S3:
            return {}


def zookeeper(home: Home, part: Instance, spec: Spec) -> dict[str, object]:
    """Return the settings of a server that is as durable as in production (forceSync)."""
    return {
        "tickTime": 2000,
        "dataDir": home.data(part),
        "clientPort": spec.port(part, "zookeeper"),
        "clientPortAddress": spec.listen,
        "admin.enableServer": False,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "forceSync": "yes",
        "maxClientCnxns": 0,
        "maxSessionTimeout": 40_000,
        **(_ensemble(spec) if spec.is_ensemble else {}),
    }


def _ensemble(spec: Spec) -> dict[str, object]:
    members: dict[str, object] = {
        f"server.{part.number}": ":".join(
            (spec.listen, *(str(spec.port(part, name)) for name in ("zookeeper_quorum", "zookeeper_election")))
        )
        for part in spec.all_of(Part.ZOOKEEPER)
    }
    # a server that is silent for five ticks (10 s) leaves the ensemble, and a leader loses its role
    return {"initLimit": 10, "syncLimit": 5, **members}


def bookie(home: Home, part: Instance, spec: Spec) -> dict[str, object]:
    """Return the settings of a bookie whose entry logs are so small that their space is reclaimed within seconds."""
    data = home.data(part)
    return {
        "bookieId": f"bookie-{part.number - 1}",  # with the default host:port, cookies would refuse another port
        "bookiePort": spec.port(part, "bookie"),
        "advertisedAddress": spec.listen,
        # without it, a bookie listens on every address
        "listeningInterface": interface_of(spec.listen),
        "allowLoopback": True,
        "journalDirectories": data / "journal",
        "ledgerDirectories": data / "ledgers",
        "metadataServiceUri": metadata_service_uri(spec),
        "zkTimeout": SESSION_MS,
        "httpServerEnabled": True,
        "httpServerHost": spec.listen,
        "httpServerPort": spec.port(part, "bookie_http"),
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "dbStorage_writeCacheMaxSizeMb": 16,
        "dbStorage_readAheadCacheMaxSizeMb": 16,
        "dbStorage_rocksDB_blockCacheSize": 8 * 1024 * 1024,
        "dbStorage_rocksDB_writeBufferSizeMB": 4,
        "dbStorage_rocksDB_sstSizeInMB": 4,
        "flushInterval": 1_000,
        "journalMaxSizeMB": 16,
        "journalMaxBackups": 1,
        "journalPreAllocSizeMB": 4,
        "journalSyncData": False,
        "logSizeLimit": 1024 * 1024,
        "entryLogFilePreallocationEnabled": False,
        "gcWaitTime": spec.gc_wait_seconds * 1000,
        "gcOverreplicatedLedgerWaitTime": 3_600_000,
        # a bookie refuses to start if it would compact more often than it collects
        "minorCompactionInterval": 2 * spec.gc_wait_seconds,
        "minorCompactionThreshold": 0.5,
        "majorCompactionInterval": 4 * spec.gc_wait_seconds,
        "majorCompactionThreshold": 0.9,
        "forceAllowCompaction": True,
        "isForceGCAllowWhenNoSpace": True,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.985,
        "minUsableSizeForEntryLogCreation": 4 * 1024 * 1024,
        "autoRecoveryDaemonEnabled": len(spec.all_of(Part.BOOKIE)) > 1,  # runs in each bookie, as in the distribution
        # pauses after a ledger that can't be copied, and until it is tried again (defaults: 5 s, and up to 5 minutes)
        "rwRereplicateBackoffMs": 1_000,
        "lockReleaseOfFailedLedgerGracePeriod": 10_000,
        "nettyMaxFrameSizeBytes": 5_253_120,
        "numReadWorkerThreads": 2,
        "numHighPriorityWorkerThreads": 2,
        "numJournalCallbackThreads": 2,
    }


def broker(home: Home, part: Instance, spec: Spec, pulsar: Path) -> dict[str, object]:
    """Return the settings of a broker with ledgers of ten entries, which trims at once and offloads to the S3 part."""
    brokers = len(spec.all_of(Part.BROKER))
    return {
        "metadataStoreUrl": f"zk:{addresses(spec).zookeeper}",
        "configurationMetadataStoreUrl": f"zk:{addresses(spec).zookeeper}",
        "metadataStoreSessionTimeoutMillis": SESSION_MS,
        "clusterName": CLUSTER_NAME,
        "brokerServicePort": spec.port(part, "broker"),
        "webServicePort": spec.port(part, "broker_http"),
        "bindAddress": spec.listen,
        "advertisedAddress": spec.listen,
        **_ledgers(copies=min(_COPIES, len(spec.all_of(Part.BOOKIE)))),
        **_topics(),
        **_offload(home, part, spec, pulsar),
        "brokerShutdownTimeoutMs": 10_000,
        "functionsWorkerEnabled": False,
        "enablePackagesManagement": False,
        "transactionCoordinatorEnabled": False,
        "loadBalancerSheddingEnabled": False,
        "loadBalancerAutoBundleSplitEnabled": False,
        "defaultNumberOfNamespaceBundles": 1 if brokers == 1 else _BUNDLES_PER_BROKER * brokers,
        "numIOThreads": 4,
        "numHttpServerThreads": 16,
        "numOrderedExecutorThreads": 2,
    }


def _ledgers(*, copies: int) -> dict[str, object]:
    return {
        "managedLedgerDefaultEnsembleSize": copies,
        "managedLedgerDefaultWriteQuorum": copies,
        "managedLedgerDefaultAckQuorum": copies,
        "managedLedgerMaxEntriesPerLedger": 10,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "managedLedgerCursorMaxEntriesPerLedger": 50,
        "managedLedgerDefaultMarkDeleteRateLimit": 100,  # acknowledgements are written to the cursor's ledger at once
        "managedLedgerCacheSizeMB": 32,
        "managedLedgerNumSchedulerThreads": 2,
        "bookkeeperClientNumWorkerThreads": 2,
        "bookkeeperNumberOfChannelsPerBookie": 2,
        "retentionCheckIntervalInSeconds": 2,
        "defaultRetentionTimeInMinutes": 0,
        "defaultRetentionSizeInMB": 0,
    }


def _topics() -> dict[str, object]:
    return {
        "allowAutoTopicCreation": True,
        "brokerDeleteInactiveTopicsEnabled": False,
        "forceDeleteNamespaceAllowed": True,
        "forceDeleteTenantAllowed": True,
        "brokerDeduplicationEnabled": False,
        "systemTopicEnabled": True,
        "topicLevelPoliciesEnabled": True,
        # Delayed messages are written to bucket ledgers (PIP-195), which production does only above 50,000 messages.
        "delayedDeliveryTrackerFactoryClassName": f"{_BROKER}.delayed.BucketDelayedDeliveryTrackerFactory",
        "delayedDeliveryMinIndexCountPerBucket": 50,
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 20,
        "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": 60,
        "delayedDeliveryFixedDelayDetectionLookahead": 0,
    }


def _offload(home: Home, part: Instance, spec: Spec, pulsar: Path) -> dict[str, object]:
    offloaders = pulsar / "offloaders"
    if not offloaders.is_dir():  # no repository serves the offloaders of this version
        return {}
    # The driver aws-s3 would first request the bucket's region from the public S3, and wait for that to fail.
    return {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadRegion": REGION,
        "managedLedgerOffloadServiceEndpoint": addresses(spec).s3,
        "managedLedgerOffloadDeletionLagMs": 0,
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": -1,
        "offloadersDirectory": offloaders,
        "narExtractionDirectory": home.root / "tmp" / ("nar" if part.number == 1 else f"nar-{part.number}"),
    }


def metadata_service_uri(spec: Spec) -> str:
    """Return the metadata URI for BookKeeper's own tools, which separate hosts by semicolons."""
    return f"zk+hierarchical://{addresses(spec).zookeeper.replace(',', ';')}{LEDGERS_ROOT}"


def interface_of(listen: str) -> str:
    """Return the name of the interface with this address.

    Raises ConfigError if no interface of this machine has the address.
    """
    for name, interface_addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == listen for address in interface_addresses):
            return name
    raise ConfigError(f"no network interface of this machine has the IPv4 address {listen}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
