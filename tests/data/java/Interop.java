import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * What a user's Java application does with our topics: run by the interoperability test, one action per run.
 *
 * <p>null URL TOPIC: publishes a message without a value, as a tombstone is.
 * <p>put-off URL TOPIC RETRY DLQ COUNT MAX: a Shared consumer with enableRetry puts every message off until it has
 * handled COUNT; prints topic, attempt, origin and delay of each, tab-separated.
 */
public final class Interop {
    private Interop() {}

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build()) {
            if (args[0].equals("null")) {
                try (Producer<byte[]> producer = client.newProducer().topic(args[2]).create()) {
                    producer.newMessage().value(null).send();
                }
            } else {
                putOff(client, args[2], args[3], args[4], Integer.parseInt(args[5]), Integer.parseInt(args[6]));
            }
        }
    }

    private static void putOff(PulsarClient client, String topic, String retry, String dlq, int count, int max)
            throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(max)
                .retryLetterTopic(retry)
                .deadLetterTopic(dlq)
                .build();
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName("java")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true)
                .deadLetterPolicy(policy)
                .subscribe()) {
            for (int handled = 0; handled < count; handled++) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("nothing more arrives after " + handled);
                }
                Map<String, String> properties = message.getProperties();
                System.out.println(String.join("\t",
                        message.getTopicName(),
                        properties.getOrDefault("RECONSUMETIMES", "0"),
                        properties.getOrDefault("ORIGIN_MESSAGE_ID", ""),
                        properties.getOrDefault("DELAY_TIME", "0"),
                        String.valueOf(message.getMessageId())));
                consumer.reconsumeLater(message, 1, TimeUnit.SECONDS);
            }
        }
    }
}
