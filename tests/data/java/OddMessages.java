import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Publishes whatever a Java producer can publish. One JVM takes commands for as long as its standard input is open.
 *
 * <p>Arguments: URL [transactions]. A command is a line of JSON, and so is its answer, which begins with {@code @}:
 * {@code {"ids": ["ledger:entry:partition", ...]}} or {@code {"error": "..."}}.
 *
 * <p>{@code {"do": "send", "topic": T, "producer": {...}, "transaction": {...}, "messages": [{...}, ...]}} sends
 * messages together and waits until they are stored.
 * producer: batching (most messages of a batch; left out: none), compression, chunkBytes (left out: no chunks),
 * encryption (true: with a key that nobody else has), schema (STRING, AVRO, JSON, KEY_VALUE_INLINE,
 * KEY_VALUE_SEPARATED; left out: bytes), name.
 * transaction: end (commit, abort, open), timeoutMs. An open transaction stays open; {@code {"do": "end", "transaction": N,
 * "how": "commit"}} ends the one whose answer had the number N.
 * message: value (base64; null: a message without a value), key, keyBytes, orderingKey (both base64), properties,
 * eventTime, sequenceId, deliverAfterMs.
 */
public final class OddMessages {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<Transaction> OPEN = new ArrayList<>();
    private static final Map<String, Producer<Object>> PRODUCERS = new ConcurrentHashMap<>();

    private OddMessages() {}

    /** What the schema'd producers send: a request, as a user's class might hold it. */
    public static final class Request {
        public String topicName;
        public String ledgerComponent;
        public String ledgerType;
        public long ledgerId;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        boolean transactions = args.length > 1 && args[1].equals("transactions");
        CryptoKeyReader keys = newKeys();
        try (PulsarClient client = PulsarClient.builder()
                        .serviceUrl(args[0])
                        .enableTransaction(transactions)
                        .build();
                BufferedReader commands =
                        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                ObjectNode answer;
                try {
                    answer = answer(client, keys, JSON.readTree(line));
                } catch (Throwable failure) {
                    answer = JSON.createObjectNode().put("error", String.valueOf(failure));
                }
                answers.println("@" + JSON.writeValueAsString(answer));
                answers.flush();
            }
        }
    }

    private static ObjectNode answer(PulsarClient client, CryptoKeyReader keys, JsonNode command) throws Exception {
        return switch (command.path("do").asText()) {
            case "send" -> send(client, keys, command);
            case "end" -> end(OPEN.get(command.get("transaction").asInt()), command.get("how").asText());
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private static ObjectNode send(PulsarClient client, CryptoKeyReader keys, JsonNode command) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        Producer<Object> producer = producer(client, keys, command);
        JsonNode wanted = command.path("transaction");
        Transaction transaction = wanted.isObject() ? begin(client, wanted) : null;
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (JsonNode message : command.get("messages")) {
            sent.add(message(producer, transaction, command.path("producer"), message).sendAsync());
        }
        producer.flush();
        ArrayNode ids = answer.putArray("ids");
        for (CompletableFuture<MessageId> each : sent) {
            ids.add(String.valueOf(each.get(60, TimeUnit.SECONDS)));
        }
        if (transaction != null && wanted.get("end").asText().equals("open")) {
            OPEN.add(transaction);
            answer.put("transaction", OPEN.size() - 1);
        } else if (transaction != null) {
            end(transaction, wanted.get("end").asText());
        }
        return answer;
    }

    private static Transaction begin(PulsarClient client, JsonNode wanted) throws Exception {
        return client.newTransaction()
                .withTransactionTimeout(wanted.path("timeoutMs").asLong(600_000), TimeUnit.MILLISECONDS)
                .build()
                .get(60, TimeUnit.SECONDS);
    }

    private static ObjectNode end(Transaction transaction, String how) throws Exception {
        (how.equals("commit") ? transaction.commit() : transaction.abort()).get(60, TimeUnit.SECONDS);
        return JSON.createObjectNode();
    }

    @SuppressWarnings("unchecked")
    private static Producer<Object> producer(PulsarClient client, CryptoKeyReader keys, JsonNode command)
            throws Exception {
        JsonNode wanted = command.path("producer");
        String known = command.get("topic").asText() + " " + wanted;
        Producer<Object> open = PRODUCERS.get(known);
        if (open != null && open.isConnected()) {
            return open;
        }
        if (PRODUCERS.size() > 50) {
            for (Producer<Object> each : PRODUCERS.values()) {
                each.close();
            }
            PRODUCERS.clear();
        }
        ProducerBuilder<Object> builder = client.newProducer((Schema<Object>) schema(wanted))
                .topic(command.get("topic").asText())
                .sendTimeout(30, TimeUnit.SECONDS)
                .blockIfQueueFull(true)
                .enableBatching(wanted.has("batching"));
        if (wanted.has("batching")) {
            builder.batchingMaxMessages(wanted.get("batching").asInt())
                    .batchingMaxPublishDelay(10, TimeUnit.SECONDS)
                    .batchingMaxBytes(4 << 20);
        }
        if (wanted.has("compression")) {
            builder.compressionType(CompressionType.valueOf(wanted.get("compression").asText()));
        }
        if (wanted.has("chunkBytes")) {
            builder.enableChunking(true).chunkMaxMessageSize(wanted.get("chunkBytes").asInt());
        }
        if (wanted.path("encryption").asBoolean()) {
            builder.addEncryptionKey("nobody-else-has-it").cryptoKeyReader(keys);
        }
        if (wanted.has("name")) {
            builder.producerName(wanted.get("name").asText());
        }
        Producer<Object> made = builder.create();
        PRODUCERS.put(known, made);
        return made;
    }

    private static Schema<?> schema(JsonNode wanted) {
        return switch (wanted.path("schema").asText("BYTES")) {
            case "STRING" -> Schema.STRING;
            case "AVRO" -> Schema.AVRO(Request.class);
            case "JSON" -> Schema.JSON(Request.class);
            case "KEY_VALUE_INLINE" -> Schema.KeyValue(
                    Schema.STRING, Schema.JSON(Request.class), KeyValueEncodingType.INLINE);
            case "KEY_VALUE_SEPARATED" -> Schema.KeyValue(
                    Schema.STRING, Schema.JSON(Request.class), KeyValueEncodingType.SEPARATED);
            default -> Schema.BYTES;
        };
    }

    private static TypedMessageBuilder<Object> message(
            Producer<Object> producer, Transaction transaction, JsonNode options, JsonNode wanted) throws Exception {
        TypedMessageBuilder<Object> message =
                transaction == null ? producer.newMessage() : producer.newMessage(transaction);
        String schema = options.path("schema").asText("BYTES");
        message.value(value(schema, wanted));
        if (wanted.has("key") && !schema.endsWith("SEPARATED")) {
            message.key(wanted.get("key").asText());
        }
        if (wanted.has("keyBytes")) {
            message.keyBytes(wanted.get("keyBytes").binaryValue());
        }
        if (wanted.has("orderingKey")) {
            message.orderingKey(wanted.get("orderingKey").binaryValue());
        }
        if (wanted.has("properties")) {
            Map<String, String> properties = new HashMap<>();
            wanted.get("properties").fields().forEachRemaining(
                    each -> properties.put(each.getKey(), each.getValue().asText()));
            message.properties(properties);
        }
        if (wanted.has("eventTime")) {
            message.eventTime(wanted.get("eventTime").asLong());
        }
        if (wanted.has("sequenceId")) {
            message.sequenceId(wanted.get("sequenceId").asLong());
        }
        if (wanted.has("deliverAfterMs")) {
            message.deliverAfter(wanted.get("deliverAfterMs").asLong(), TimeUnit.MILLISECONDS);
        }
        return message;
    }

    private static Object value(String schema, JsonNode wanted) throws Exception {
        if (!wanted.hasNonNull("value")) {
            return null;
        }
        byte[] bytes = wanted.get("value").binaryValue();
        if (schema.equals("BYTES")) {
            return bytes;
        }
        if (schema.equals("STRING")) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
        Request request = JSON.readValue(bytes, Request.class);
        String key = wanted.path("key").asText("key");
        return schema.startsWith("KEY_VALUE") ? new KeyValue<>(key, request) : request;
    }

    private static CryptoKeyReader newKeys() throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        KeyPair pair = generator.generateKeyPair();
        byte[] publicKey = pem("PUBLIC KEY", pair.getPublic().getEncoded());
        byte[] privateKey = pem("PRIVATE KEY", pair.getPrivate().getEncoded());
        return new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(publicKey, metadata);
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(privateKey, metadata);
            }
        };
    }

    private static byte[] pem(String what, byte[] der) {
        String body = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der);
        return ("-----BEGIN " + what + "-----\n" + body + "\n-----END " + what + "-----\n")
                .getBytes(StandardCharsets.US_ASCII);
    }
}
