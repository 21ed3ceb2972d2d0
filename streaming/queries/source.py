"""Reads Pulsar through the pulsar-spark connector. A comment beside each option says what it prevents."""

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

    client: options of its own (spark.connector_clients): queries with the same ones share a connection, and what breaks
    it for one breaks it for all.
    """
    pulsar = settings.pulsar
    require_safe_token(pulsar)
    options = {
        "service.url": pulsar.service_url,
        # the connector takes one broker only; when that one dies, the query fails, and its next start takes another
        "admin.url": answering(replace(admin_settings(settings), timeout_seconds=_ADMIN_PATIENCE_SECONDS)),
        "topics": ",".join(topics),
        # at every start the connector moves the subscription's cursor there, whatever the checkpoint says; any later
        # position would let Pulsar delete messages that are not worked off yet
        "startingOffsets": "earliest",
        "predefinedSubscription": settings.topics.subscription,
        # otherwise a read that times out is committed as if the topic had been empty
        "failOnDataLoss": "true",
        # waited for an entry that never comes, and then the batch is read another way (decision 15)
        "pollTimeoutMs": "10000",
        **client,
        # gives us raw bytes, whatever schema somebody registers on the topic; JSON mode mixes up the rows' values
        "allowDifferentTopicSchemas": "true",
        # the connector asks brokers for so many entries of each partition at once, decompresses them, and makes objects
        # of all their messages; it takes 1000 if it is not told. For ten kilobytes a sender gets 1.2 million messages
        # into one entry, which are half a gigabyte then
        "pulsar.reader.receiverQueueSize": _QUEUE,
    }
    for side, url in (("client", pulsar.service_url), ("admin", options["admin.url"])):
        if pulsar.token_file:
            options[f"pulsar.{side}.authPluginClassName"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            options[f"pulsar.{side}.authParams"] = f"file://{pulsar.token_file}"
        if pulsar.tls_trust_certs_file:
            options[f"pulsar.{side}.tlsTrustCertsFilePath"] = pulsar.tls_trust_certs_file
        # Pulsar's Java client compares no names unless it is told to. Told so without TLS it closes its connections
        compares = pulsar.tls_check_hostname and is_tls(url)
        options[f"pulsar.{side}.tlsHostnameVerificationEnable"] = str(compares).lower()
    return spark.readStream.format("pulsar").options(**options).load()
