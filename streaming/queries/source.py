"""Reading Pulsar through the pulsar-spark connector; what each option guards against stands beside it."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from streaming.config.sections import PulsarSettings


def read_stream(spark: SparkSession, settings: PulsarSettings, topics: Sequence[str], subscription: str) -> DataFrame:
    """An unstarted stream of all topics. The subscription must exist on every partition."""
    options = {
        "service.url": settings.service_url,
        "admin.url": settings.admin_url,
        "topics": ",".join(topics),
        # at every start the connector moves its cursor there, whatever the checkpoint says: anywhere later
        # would give up the protection of what is not worked off yet
        "startingOffsets": "earliest",
        "predefinedSubscription": subscription,
        # a read that times out would otherwise be committed as if it had been empty
        "failOnDataLoss": "true",
        # raw bytes whatever schema somebody registers on the topic: JSON mode yields another row's values
        "allowDifferentTopicSchemas": "true",
    }
    for side in ("client", "admin"):
        if settings.token_file:
            options[f"pulsar.{side}.authPluginClassName"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            options[f"pulsar.{side}.authParams"] = f"file://{settings.token_file}"
        if settings.tls_trust_certs_file:
            options[f"pulsar.{side}.tlsTrustCertsFilePath"] = settings.tls_trust_certs_file
    return spark.readStream.format("pulsar").options(**options).load()
