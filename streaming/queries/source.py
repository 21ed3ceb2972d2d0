"""Reads Pulsar through the pulsar-spark connector. A comment beside each option names what it prevents."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from streaming.adapters.pulsar.http import answering, require_safe_token
from streaming.clients import admin_settings
from streaming.config.hosts import is_tls
from streaming.config.settings import Settings

_QUEUE = "1"
_ADMIN_PATIENCE_SECONDS = 5.0


def read_stream(spark: SparkSession, settings: Settings, topics: Sequence[str], client: Mapping[str, str]) -> DataFrame:
    """Return an unstarted stream of all topics. The subscription must exist on every partition.

    client: options that only this query has (spark.connector_clients).
    """
    pulsar = settings.pulsar
    require_safe_token(pulsar)
    options = {
        "service.url": pulsar.service_url,
        # the connector takes a single broker; when that broker dies, the query fails, and its next start takes another
        "admin.url": answering(replace(admin_settings(settings), timeout_seconds=_ADMIN_PATIENCE_SECONDS)),
        "topics": ",".join(topics),
        # at every start the connector moves the subscription's cursor to this position and ignores the checkpoint; any
        # later position would let Pulsar delete messages that are not processed yet
        "startingOffsets": "earliest",
        "predefinedSubscription": settings.topics.subscription,
        # otherwise a read that times out is committed as if the topic had been empty
        "failOnDataLoss": "true",
        # the wait for an entry that never comes, before the fallback reads the batch (decision 15)
        "pollTimeoutMs": "10000",
        # queries with the same options would share a connection, and a message that breaks it would break it for all of
        # them
        **client,
        # raw bytes under any schema that a tenant registers on the topic; JSON mode mixes up the rows' values
        "allowDifferentTopicSchemas": "true",
        # the connector requests so many entries of each partition at once (by default 1000), decompresses them, and
        # creates objects of all their messages. A sender can pack 1.2 million messages into an entry of ten kilobytes;
        # their objects take half a gigabyte
        "pulsar.reader.receiverQueueSize": _QUEUE,
    }
    for side, url in (("client", pulsar.service_url), ("admin", options["admin.url"])):
        if pulsar.token_file:
            options[f"pulsar.{side}.authPluginClassName"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            options[f"pulsar.{side}.authParams"] = f"file://{pulsar.token_file}"
        if pulsar.tls_trust_certs_file:
            options[f"pulsar.{side}.tlsTrustCertsFilePath"] = pulsar.tls_trust_certs_file
        # by default Pulsar's Java client verifies no host names; with this option and without TLS it closes connections
        verifies = pulsar.tls_check_hostname and is_tls(url)
        options[f"pulsar.{side}.tlsHostnameVerificationEnable"] = str(verifies).lower()
    return spark.readStream.format("pulsar").options(**options).load()
