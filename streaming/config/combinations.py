"""Checks of keys that are valid alone and can't work together; each fault is a message for the operator."""

import re
from collections.abc import Iterator

from streaming.config.hosts import each_url, is_tls, may_carry_secret
from streaming.config.packages import NEEDS_KERBEROS, has_package
from streaming.config.sections import PulsarSettings, TopicSettings, ZooKeeperSettings
from streaming.config.settings import Settings
from udfs.paths import tenant_of
from udfs.requests.lanes import Lanes
from udfs.units import MAX_DELAY_MS

_OBJECT_STORES = ("s3://", "s3a://")
_S3_DIRECTORY = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._-]*)+/?")
_PASSWORD = re.compile(r"://[^/]*:[^/]*@")
_OF_KERBEROS = ("kerberos_principal", "kerberos_keytab_file")
_OF_PULSAR = ("/managed-ledgers", "/schemas", "/admin", "/loadbalance", "/namespace")


def faults_of(settings: Settings) -> list[str]:
    """Return a message for each combination of keys that can't work."""
    return [
        *_zookeeper_faults(settings.zookeeper),
        *_directory_faults(settings.state.dir, settings.checkpoints.dir),
        *_tenant_faults(settings.topics),
        *_shared_topic_faults(settings.topics),
        *_receipt_faults(settings.topics),
        *(watch_faults(settings.topics) if settings.watch.enabled else ()),
        *_delay_faults(settings),
        *credential_faults(settings.pulsar),
        *_transport_faults(settings.pulsar),
    ]


def _zookeeper_faults(zookeeper: ZooKeeperSettings) -> Iterator[str]:
    roots = (zookeeper.ledgers_root, *_OF_PULSAR)
    if any(zookeeper.own_root == root or zookeeper.own_root.startswith(root + "/") for root in roots):
        yield f"zookeeper.own_root {zookeeper.own_root} is below a root of Pulsar or BookKeeper: name another znode"
    if zookeeper.timeout_seconds < zookeeper.session_timeout_seconds:
        yield (
            f"zookeeper.timeout_seconds ({zookeeper.timeout_seconds}) is less than session_timeout_seconds "
            f"({zookeeper.session_timeout_seconds}): a slow answer would cost the session, and the lock with it"
        )
    yield from _sasl_faults(zookeeper)


def _sasl_faults(zookeeper: ZooKeeperSettings) -> Iterator[str]:
    mechanism = zookeeper.sasl_mechanism
    if mechanism not in ("", "DIGEST-MD5", "GSSAPI"):
        yield (
            f"zookeeper.sasl_mechanism: {mechanism[:24]} is not supported, only DIGEST-MD5 and GSSAPI (Kerberos) are. "
            "Let the servers accept one of these, a digest without SASL, or client certificates as well"
        )
    if mechanism == "GSSAPI" and zookeeper.digest_file:
        yield 'zookeeper.digest_file has no effect with sasl_mechanism = "GSSAPI": remove one of them'
    if mechanism == "GSSAPI" and not has_package("kerberos"):
        yield NEEDS_KERBEROS
    if mechanism == "DIGEST-MD5" and not zookeeper.digest_file:
        yield "zookeeper.sasl_mechanism needs zookeeper.digest_file (a file that holds user:password)"
    for key in _OF_KERBEROS:
        if bool(getattr(zookeeper, key)) != (mechanism == "GSSAPI"):
            yield f'zookeeper.{key} and sasl_mechanism = "GSSAPI" belong together: give both or neither'


def credential_faults(pulsar: PulsarSettings) -> Iterator[str]:
    """Yield why these credentials can't work together, wherever they are sent."""
    keys = pulsar.credential_keys
    if len(keys) > 1:
        yield f"{' and '.join(keys)}: give only one of them: each authenticates by itself"
    if bool(pulsar.tls_cert_file) != bool(pulsar.tls_key_file):
        yield "pulsar.tls_cert_file and pulsar.tls_key_file belong together: give both or neither"
    yield from _oauth2_faults(pulsar)


def _transport_faults(pulsar: PulsarSettings) -> Iterator[str]:
    for key in pulsar.credential_keys[:1]:
        yield from _tls_faults(pulsar, key)


def _oauth2_faults(pulsar: PulsarSettings) -> Iterator[str]:
    if not pulsar.oauth2_key_file:
        others = ("oauth2_issuer_url", "oauth2_audience", "oauth2_scope")
        for key in (key for key in others if getattr(pulsar, key)):
            yield f"pulsar.{key} needs pulsar.oauth2_key_file, a file with client_id and client_secret"
    elif not pulsar.oauth2_issuer_url:
        yield "pulsar.oauth2_key_file needs pulsar.oauth2_issuer_url"
    elif not may_carry_secret(pulsar.oauth2_issuer_url):
        yield "pulsar.oauth2_issuer_url: the client secret would go over the network unencrypted; use an https:// URL"


def _tls_faults(pulsar: PulsarSettings, credentials: str) -> Iterator[str]:
    """Yield why these credentials would reach no broker, or others too."""
    is_certificate = credentials == "pulsar.tls_cert_file"
    for key, url, secure in (
        ("admin_url", pulsar.admin_url, "an https://"),
        ("service_url", pulsar.service_url, "a pulsar+ssl://"),
    ):
        if is_certificate and not is_tls(url):
            yield f"{credentials}: a client sends its certificate over TLS only; use {secure} {key}"
        elif not all(may_carry_secret(host_url) for host_url in each_url(url)):
            yield f"{credentials}: the secret would go over the network unencrypted; use {secure} {key}"
    # the connector's Java client compares the name only after it has sent the secret (docs/findings.md)
    if not is_certificate and pulsar.service_url.startswith("pulsar+ssl:") and not pulsar.tls_trust_certs_file:
        yield (
            f"{credentials}: a secret over pulsar+ssl:// needs pulsar.tls_trust_certs_file, a file with the "
            "certificate of the authority that signed the brokers' certificates: otherwise a server with a certificate "
            "of any public authority can get the secret"
        )


def _bare(location: str) -> str:
    """Return a location without the parts of a URI that may contain a secret."""
    return re.split(r"[?#]", re.sub(r"://.*@", "://…@", location))[0] if "://" in location else location


def _directory_faults(state: str, checkpoints: str) -> list[str]:
    faults = []
    if _plain(state) == _plain(checkpoints):
        faults.append("state.dir and checkpoints.dir must be two directories")
    for key, location in (("state.dir", state), ("checkpoints.dir", checkpoints)):
        if _PASSWORD.search(location) or ("://" in location and any(sign in location for sign in "?#")):
            faults.append(
                f"{key} {_bare(location)} has a password, query or fragment (…:…@, ?, #), which logs would show: give "
                "the address only; credentials come from the store's own configuration"
            )
        if location.startswith(_OBJECT_STORES) and not _S3_DIRECTORY.fullmatch(location):
            faults.append(
                f"{key} {_bare(location)}: on an object store it must be s3://bucket/folder: the bucket of 3 to 63 "
                "small letters, digits, dots and dashes, the folder of letters, digits, dots, dashes, underscores and "
                "slashes; credentials come from AWS's standard chain, never from here"
            )
    return faults


def _plain(location: str) -> str:
    # s3:// and s3a:// name the same directory
    return re.sub(r"^s3a://", "s3://", location).rstrip("/")


def _tenant_faults(topics: TopicSettings) -> list[str]:
    """Refuse retries in an untrusted tenant's topic."""
    # that tenant could write retries of other tenants' requests
    trusted = set(topics.trusted_tenants)
    tenants = {tenant_of(topic) for topic in topics.requests}
    if topics.pattern is not None:
        tenants.add(topics.pattern.tenant)
    if topics.lanes is Lanes.ONE and (len(tenants) == 1 or tenants <= trusted):
        return []
    return [
        f"topics.{key} {topic} belongs to tenant {tenant_of(topic)}, which is not in topics.trusted_tenants, "
        "while several tenants have request topics: name one in a trusted tenant's namespace"
        for key, topic in (("retry", topics.retry), ("dead_letter", topics.dead_letter))
        if tenant_of(topic) not in trusted
    ]


def _shared_topic_faults(topics: TopicSettings) -> Iterator[str]:
    """Refuse a shared topic whose requests for other tenants' ledgers would all become dead letters."""
    shared = topics.requests[0]
    if topics.lanes is not Lanes.ONE and tenant_of(shared) not in topics.trusted_tenants:
        yield (
            f"topics.requests starts with {shared} of tenant {tenant_of(shared)}, which is not in "
            f"topics.trusted_tenants, and with topics.lanes = {topics.lanes.value} the first topic gets the requests "
            "of all owners without a lane: put a topic in a trusted tenant's namespace first, such as "
            "persistent://pulsar/system/__ledger_deletion"
        )


def _receipt_faults(topics: TopicSettings) -> Iterator[str]:
    if topics.receipts and topics.lanes is Lanes.ONE:
        yield 'topics.receipts needs topics.lanes = "tenant" or "namespace": receipts go to the topics of lanes only'


def watch_faults(topics: TopicSettings) -> list[str]:
    """Return why a watcher, which publishes requests for all tenants, can't publish to topics.watch."""
    tenant = tenant_of(topics.watch)
    if tenant in topics.trusted_tenants:
        return []
    return [
        f"topics.watch {topics.watch} belongs to tenant {tenant}, which is not in topics.trusted_tenants, and the "
        "watcher publishes requests for ledgers of all tenants: name a topic in a trusted tenant's namespace"
    ]


def _delay_faults(settings: Settings) -> list[str]:
    # the service shortens longer delays of retries, because a sender can forge a delay
    two_phase, longest_s = settings.two_phase, MAX_DELAY_MS // 1000
    waits = ("reconsume_later_seconds", "reconsume_later_max_seconds", "not_closed_later_seconds")
    faults = [
        f"two_phase.{key} must be {longest_s} (a week) or less" for key in waits if getattr(two_phase, key) > longest_s
    ]
    if 0 < two_phase.reconsume_later_max_seconds < two_phase.reconsume_later_seconds:
        faults.append("two_phase.reconsume_later_max_seconds must be 0 or at least reconsume_later_seconds")
    return faults
