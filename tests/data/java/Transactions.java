import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TxnID;

/**
 * Many transactions, each of one message, and what a read-committed consumer gets of them. Argument: URL.
 *
 * <p>A command is a line of JSON, and so is its answer, which begins with {@code @}. {@code {"do": "run", "topic": T,
 * "ends": "aac...", "from": 0}}: a transaction for each letter (a: abort, c: commit, o: left open), a hundred at a time;
 * its message is the letter and a number. Answers {@code {"ids": [[most, least], ...]}} in the order of the letters.
 * {@code {"do": "read", "topic": T, "subscription": S, "patienceMs": N}}: what a consumer gets, unacknowledged, until
 * nothing comes for so long: {@code {"values": [...]}}. {@code {"do": "plain", "topic": T, "values": [...]}} sends
 * without a transaction.
 */
public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Producer<byte[]>> PRODUCERS = new HashMap<>();
    private static final int AT_ONCE = 100;

    private Transactions() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        try (PulsarClient client = PulsarClient.builder()
                        .serviceUrl(args[0])
                        .enableTransaction(true)
                        .build();
                BufferedReader commands =
                        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                ObjectNode answer;
                try {
                    answer = answer(client, JSON.readTree(line));
                } catch (Throwable failure) {
                    answer = JSON.createObjectNode().put("error", String.valueOf(failure));
                }
                answers.println("@" + JSON.writeValueAsString(answer));
                answers.flush();
            }
        }
    }

    private static ObjectNode answer(PulsarClient client, JsonNode command) throws Exception {
        return switch (command.path("do").asText()) {
            case "run" -> run(client, command);
            case "read" -> read(client, command);
            case "plain" -> plain(client, command);
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private static ObjectNode run(PulsarClient client, JsonNode command) throws Exception {
        Producer<byte[]> producer = producer(client, command.get("topic").asText());
        String ends = command.get("ends").asText();
        int from = command.path("from").asInt();
        Semaphore window = new Semaphore(AT_ONCE);
        List<CompletableFuture<TxnID>> all = new ArrayList<>();
        for (int number = 0; number < ends.length(); number++) {
            char end = ends.charAt(number);
            byte[] value = (end + Integer.toString(from + number)).getBytes(StandardCharsets.UTF_8);
            window.acquire();
            CompletableFuture<TxnID> one = client.newTransaction()
                    .withTransactionTimeout(600, TimeUnit.SECONDS)
                    .build()
                    .thenCompose(transaction -> end(producer, transaction, value, end));
            all.add(one.whenComplete((id, failure) -> window.release()));
        }
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode ids = answer.putArray("ids");
        for (CompletableFuture<TxnID> each : all) {
            TxnID id = each.get(120, TimeUnit.SECONDS);
            ids.addArray().add(id.getMostSigBits()).add(id.getLeastSigBits());
        }
        return answer;
    }

    private static CompletableFuture<TxnID> end(
            Producer<byte[]> producer, Transaction transaction, byte[] value, char end) {
        CompletableFuture<?> sent = producer.newMessage(transaction).value(value).sendAsync();
        return sent.thenCompose(id -> switch (end) {
                    case 'a' -> transaction.abort();
                    case 'c' -> transaction.commit();
                    default -> CompletableFuture.completedFuture(null);
                })
                .thenApply(done -> transaction.getTxnID());
    }

    private static ObjectNode read(PulsarClient client, JsonNode command) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode values = answer.putArray("values");
        try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES)
                .topic(command.get("topic").asText())
                .subscriptionName(command.get("subscription").asText())
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(100_000)
                .subscribe()) {
            int patience = command.path("patienceMs").asInt(3000);
            for (Message<byte[]> got = consumer.receive(patience, TimeUnit.MILLISECONDS);
                    got != null;
                    got = consumer.receive(patience, TimeUnit.MILLISECONDS)) {
                values.add(new String(got.getValue(), StandardCharsets.UTF_8));
            }
        }
        return answer;
    }

    private static ObjectNode plain(PulsarClient client, JsonNode command) throws Exception {
        Producer<byte[]> producer = producer(client, command.get("topic").asText());
        for (JsonNode value : command.get("values")) {
            producer.send(value.asText().getBytes(StandardCharsets.UTF_8));
        }
        return JSON.createObjectNode();
    }

    private static Producer<byte[]> producer(PulsarClient client, String topic) throws Exception {
        Producer<byte[]> known = PRODUCERS.get(topic);
        if (known == null) {
            known = client.newProducer(Schema.BYTES)
                    .topic(topic)
                    .sendTimeout(0, TimeUnit.SECONDS)
                    .blockIfQueueFull(true)
                    .enableBatching(false)
                    .create();
            PRODUCERS.put(topic, known);
        }
        return known;
    }
}
