import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.OffsetNotFoundException;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Sends, reads and asks whatever a RocketMQ client can. One JVM takes commands for as long as its standard input is open.
 *
 * <p>Arguments: NAME_SERVER BROKER BROKER_NAME. A command is a line of JSON, and so is its answer, which begins with
 * {@code @}; {@code {"error": "..."}} says what failed. A message is told by its name: the first word of its body. A queue
 * is [topic, id]; a message that was read is [offset, name, store time, physical offset, tag, keys, times of delivery].
 *
 * <p>topic: name, queues, attributes. delete: name.
 * send: prefix, topic, count, queue (left out: in turn), queues, bytes, tags, level, delaySeconds, lmq, batch.
 * transactions: prefix, topic, commit, rollback, unknown. resolve: how to answer the broker's checks from now on, by prefix of
 * names. dump: queues (min, max, and every message between, read by offset). ends: queues (min and max). offsets: group,
 * queues (-1: none). commit: group, queue, offset. take: group, queues, each (so many a queue at most; left out: up to
 * the end), with a lite pull consumer that commits itself. push: group, topic, tags, expect (so many names), seconds,
 * failing (what is put off until later), pop (whether the broker hands messages out: a pop consumer). times: queues, stamps (offset by time). expire: delete all log files but the last.
 * check: the broker's own comparison of its two kinds of queues, which it writes to its log. close: every client.
 */
public final class RocketLoad {
    /** Stands for a slash in the names of light queues until this client, which refuses one, has looked at a message. */
    private static final char NO_SLASH = '\u2044';

    /** How long a call waits for its answer: brokers answer late on a busy machine. */
    private static final int PATIENCE_MS = 60_000;

    private static final Gson JSON = new Gson();
    private static final Map<String, LocalTransactionState> ANSWERS = new ConcurrentHashMap<>();
    private static String nameServer;
    private static String broker;
    private static String brokerName;
    private static DefaultMQPullConsumer reader;
    private static TransactionMQProducer producer;
    private static DefaultMQAdminExt admin;
    private static int instances;

    private RocketLoad() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        nameServer = args[0];
        broker = args[1];
        brokerName = args[2];
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonObject answer;
            try {
                answer = answer(JsonParser.parseString(line).getAsJsonObject());
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = new JsonObject();
                answer.addProperty("error", String.valueOf(failure));
            }
            answers.println("@" + JSON.toJson(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static JsonObject answer(JsonObject command) throws Exception {
        return switch (command.get("do").getAsString()) {
            case "topic" -> topic(command);
            case "delete" -> delete(command);
            case "send" -> send(command);
            case "transactions" -> transactions(command);
            case "resolve" -> resolve(command);
            case "dump" -> dump(command);
            case "ends" -> ends(command);
            case "offsets" -> offsets(command);
            case "commit" -> commit(command);
            case "take" -> take(command);
            case "push" -> push(command);
            case "times" -> times(command);
            case "expire" -> expire();
            case "check" -> check(command);
            case "close" -> close();
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    private static JsonObject topic(JsonObject command) throws Exception {
        int queues = command.get("queues").getAsInt();
        TopicConfig config = new TopicConfig(command.get("name").getAsString(), queues, queues);
        if (command.has("attributes")) {
            for (Map.Entry<String, JsonElement> each : command.getAsJsonObject("attributes").entrySet()) {
                config.getAttributes().put("+" + each.getKey(), each.getValue().getAsString());
            }
        }
        admin().createAndUpdateTopicConfig(broker, config);
        return new JsonObject();
    }

    private static JsonObject delete(JsonObject command) throws Exception {
        String topic = command.get("name").getAsString();
        admin().deleteTopicInBroker(Set.of(broker), topic);
        admin().deleteTopicInNameServer(Set.of(nameServer), topic);
        return new JsonObject();
    }

    private interface Question {
        boolean isTrue() throws Exception;
    }

    private static void until(String what, Question question) throws Exception {
        long deadline = System.currentTimeMillis() + 30_000;
        while (!question.isTrue()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("there is still no " + what);
            }
            Thread.sleep(100);
        }
    }

    private static JsonObject send(JsonObject command) throws Exception {
        String topic = command.get("topic").getAsString();
        int count = command.get("count").getAsInt();
        int queues = command.has("queues") ? command.get("queues").getAsInt() : 1;
        int batch = command.has("batch") ? command.get("batch").getAsInt() : 1;
        boolean isDelayed = command.has("level") || command.has("delaySeconds");
        Map<MessageQueue, Long> ends = new HashMap<>();
        JsonObject answer = new JsonObject();
        for (int at = 0; at < count; at += batch) {
            int queue = command.has("queue") ? command.get("queue").getAsInt() : (at / batch) % queues;
            List<Message> messages = new ArrayList<>();
            for (int each = at; each < Math.min(count, at + batch); each++) {
                messages.add(message(command, topic, each));
            }
            MessageQueue into = new MessageQueue(topic, brokerName, queue);
            SendResult result = batch > 1 ? producer().send(messages, into) : producer().send(messages.get(0), into);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("not stored: " + result);
            }
            for (int each = 0; each < messages.size(); each++) {
                JsonArray where = new JsonArray();
                where.add(queue);
                where.add(result.getQueueOffset() + each);
                answer.add(name(messages.get(each).getBody()), where);
            }
            ends.put(into, result.getQueueOffset() + messages.size());
        }
        for (Map.Entry<MessageQueue, Long> end : isDelayed ? Map.<MessageQueue, Long>of().entrySet() : ends.entrySet()) {
            // a busy broker answers before its queue has the message
            until("message in " + end, () -> reader().maxOffset(end.getKey()) >= end.getValue());
        }
        return answer;
    }

    private static Message message(JsonObject command, String topic, int number) {
        String name = command.get("prefix").getAsString() + "-" + number;
        Message message = new Message(topic, body(name, command.has("bytes") ? command.get("bytes").getAsInt() : 0));
        if (command.has("tags")) {
            JsonArray tags = command.getAsJsonArray("tags");
            JsonElement tag = tags.get(number % tags.size());
            if (!tag.isJsonNull()) {
                message.setTags(tag.getAsString());
            }
        }
        message.setKeys("key-" + name);
        if (command.has("level")) {
            message.setDelayTimeLevel(command.get("level").getAsInt());
        }
        if (command.has("delaySeconds")) {
            message.setDelayTimeSec(command.get("delaySeconds").getAsLong());
        }
        if (command.has("lmq")) {
            message.putUserProperty("odd", "ж");
            dispatch(message, command.get("lmq").getAsString().replace('/', NO_SLASH));
        }
        return message;
    }

    private static void dispatch(Message message, String queues) {
        org.apache.rocketmq.common.message.MessageAccessor.putProperty(
                message, MessageConst.PROPERTY_INNER_MULTI_DISPATCH, queues);
    }

    private static byte[] body(String name, int bytes) {
        byte[] head = (name + " ").getBytes(StandardCharsets.UTF_8);
        byte[] body = Arrays.copyOf(head, Math.max(head.length, bytes));
        // such that it does not compress: the client compresses from 4 KiB on
        for (int at = head.length; at < body.length; at++) {
            body[at] = (byte) (at * 31 + name.hashCode());
        }
        return body;
    }

    private static String name(byte[] body) {
        String text = new String(body, StandardCharsets.UTF_8);
        return text.substring(0, text.indexOf(' '));
    }

    private static JsonObject transactions(JsonObject command) throws Exception {
        JsonObject answer = new JsonObject();
        for (String end : List.of("commit", "rollback", "unknown")) {
            int count = command.has(end) ? command.get(end).getAsInt() : 0;
            JsonArray names = new JsonArray();
            for (int each = 0; each < count; each++) {
                String name = command.get("prefix").getAsString() + "-" + end + "-" + each;
                Message message = new Message(command.get("topic").getAsString(), end, "key-" + name, body(name, 0));
                producer().sendMessageInTransaction(message, state(end));
                names.add(name);
            }
            answer.add(end, names);
        }
        return answer;
    }

    private static LocalTransactionState state(String end) {
        return switch (end) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    private static JsonObject resolve(JsonObject command) throws Exception {
        for (Map.Entry<String, JsonElement> each : command.getAsJsonObject("how").entrySet()) {
            ANSWERS.put(each.getKey(), state(each.getValue().getAsString()));
        }
        // The broker asks whoever of the group has told it of himself, and a client tells the brokers of whose routes it
        // knows. Merely looking a topic's queues up leaves no route behind.
        MQClientInstance client = producer().getDefaultMQProducerImpl().getMqClientFactory();
        client.updateTopicRouteInfoFromNameServer(brokerName);
        client.sendHeartbeatToAllBrokerWithLock();
        return new JsonObject();
    }

    private static JsonObject dump(JsonObject command) throws Exception {
        JsonArray queues = new JsonArray();
        for (MessageQueue queue : queues(command)) {
            JsonObject found = ends(queue);
            JsonArray messages = new JsonArray();
            long at = found.get("min").getAsLong();
            long end = found.get("max").getAsLong();
            for (int empty = 0; at < end && empty < 5; ) {
                PullResult result = reader().pull(queue, "*", at, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        messages.add(row(message));
                    }
                } else {
                    empty++; // a hole: whoever compares sees what is missing
                    found.addProperty("said", result.getPullStatus() + " at " + at);
                }
                at = Math.max(at, result.getNextBeginOffset());
            }
            found.add("messages", messages);
            queues.add(found);
        }
        return of("queues", queues);
    }

    private static JsonArray row(MessageExt message) {
        JsonArray row = new JsonArray();
        row.add(message.getQueueOffset());
        row.add(name(message.getBody()));
        row.add(message.getStoreTimestamp());
        row.add(message.getCommitLogOffset());
        row.add(message.getTags());
        row.add(message.getKeys());
        row.add(message.getReconsumeTimes());
        return row;
    }

    private static JsonObject ends(JsonObject command) throws Exception {
        JsonArray queues = new JsonArray();
        for (MessageQueue queue : queues(command)) {
            queues.add(ends(queue));
        }
        return of("queues", queues);
    }

    private static JsonObject ends(MessageQueue queue) throws Exception {
        JsonObject found = new JsonObject();
        found.addProperty("topic", queue.getTopic());
        found.addProperty("id", queue.getQueueId());
        found.addProperty("min", reader().minOffset(queue));
        found.addProperty("max", reader().maxOffset(queue));
        return found;
    }

    private static JsonObject offsets(JsonObject command) throws Exception {
        JsonArray offsets = new JsonArray();
        for (MessageQueue queue : queues(command)) {
            offsets.add(committed(command.get("group").getAsString(), queue));
        }
        return of("offsets", offsets);
    }

    /** Asks the broker itself: a consumer needs a route first, and LMQ queues have none. */
    private static long committed(String group, MessageQueue queue) throws Exception {
        QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(queue.getTopic());
        header.setQueueId(queue.getQueueId());
        try {
            return reader().getDefaultMQPullConsumerImpl()
                    .getRebalanceImpl()
                    .getmQClientFactory()
                    .getMQClientAPIImpl()
                    .queryConsumerOffset(broker, header, 5000);
        } catch (OffsetNotFoundException none) {
            return -1;
        }
    }

    private static JsonObject commit(JsonObject command) throws Exception {
        JsonArray wanted = command.getAsJsonArray("queue");
        MessageQueue queue = new MessageQueue(wanted.get(0).getAsString(), brokerName, wanted.get(1).getAsInt());
        admin().updateConsumeOffset(
                broker, command.get("group").getAsString(), queue, command.get("offset").getAsLong());
        return new JsonObject();
    }

    private static JsonObject take(JsonObject command) throws Exception {
        long each = command.has("each") ? command.get("each").getAsLong() : Long.MAX_VALUE;
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.get("group").getAsString());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("take-" + instances++);
        consumer.setVipChannelEnabled(false);
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(5);
        consumer.start();
        JsonArray taken = new JsonArray();
        try {
            List<MessageQueue> queues = queues(command);
            Map<MessageQueue, Long> ends = new HashMap<>();
            Map<MessageQueue, Long> counts = new HashMap<>();
            Map<MessageQueue, Long> nexts = new HashMap<>();
            Set<MessageQueue> open = new HashSet<>(queues);
            for (MessageQueue queue : queues) {
                long end = reader().maxOffset(queue);
                ends.put(queue, end);
                if (committed(command.get("group").getAsString(), queue) >= end) {
                    open.remove(queue);
                }
            }
            consumer.assign(queues);
            long deadline = System.currentTimeMillis() + 60_000;
            while (!open.isEmpty() && System.currentTimeMillis() < deadline) {
                for (MessageExt message : consumer.poll(500)) {
                    MessageQueue queue =
                            new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId());
                    JsonArray row = row(message);
                    row.add(queue.getTopic());
                    row.add(queue.getQueueId());
                    taken.add(row);
                    if (ends.containsKey(queue)) {
                        nexts.merge(queue, message.getQueueOffset() + 1, Math::max);
                    }
                    long count = counts.merge(queue, 1L, Long::sum);
                    if (count >= each || message.getQueueOffset() + 1 >= ends.getOrDefault(queue, 0L)) {
                        open.remove(queue);
                        consumer.pause(List.of(queue));
                    }
                }
            }
            consumer.commit();
            for (Map.Entry<MessageQueue, Long> next : nexts.entrySet()) {
                until("commit of " + next, () -> {
                    // offsets are sent one way: nothing says whether they have come
                    boolean isThere = committed(command.get("group").getAsString(), next.getKey()) >= next.getValue();
                    if (!isThere) {
                        consumer.commit();
                    }
                    return isThere;
                });
            }
            return of("taken", taken);
        } finally {
            consumer.shutdown();
        }
    }

    private static JsonObject push(JsonObject command) throws Exception {
        String failing = command.has("failing") ? command.get("failing").getAsString() : null;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.get("group").getAsString());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("push-" + instances++);
        consumer.setVipChannelEnabled(false);
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        boolean isPop = command.has("pop") && command.get("pop").getAsBoolean();
        if (isPop) {
            admin().setMessageRequestMode(
                    broker,
                    command.get("topic").getAsString(),
                    consumer.getConsumerGroup(),
                    MessageRequestMode.POP,
                    0,
                    10_000);
            consumer.setClientRebalance(false);
        }
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.subscribe(
                command.get("topic").getAsString(), command.has("tags") ? command.get("tags").getAsString() : "*");
        ConcurrentLinkedQueue<MessageExt> seen = new ConcurrentLinkedQueue<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean later = false;
            for (MessageExt message : messages) {
                boolean fails = failing != null && name(message.getBody()).startsWith(failing);
                later |= fails;
                if (!fails) {
                    seen.add(message);
                }
            }
            return later ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long deadline = System.currentTimeMillis() + command.get("seconds").getAsLong() * 1000;
        int expect = command.get("expect").getAsInt();
        while (seen.size() < expect && System.currentTimeMillis() < deadline) {
            Thread.sleep(100);
        }
        Thread.sleep(1000); // what comes twice or in vain comes now
        if (failing != null && !isPop) { // a consumer that is shut down earlier does not send them back
            String topic = command.get("topic").getAsString();
            String group = consumer.getConsumerGroup();
            until("offset behind what was put off", () ->
                    admin().examineConsumeStats(group, topic).computeTotalDiff() == 0);
        }
        consumer.shutdown();
        JsonArray taken = new JsonArray();
        for (MessageExt message : seen) {
            JsonArray row = row(message);
            row.add(message.getTopic());
            row.add(message.getQueueId());
            taken.add(row);
        }
        return of("taken", taken);
    }

    private static JsonObject times(JsonObject command) throws Exception {
        JsonArray rows = new JsonArray();
        for (MessageQueue queue : queues(command)) {
            JsonArray row = new JsonArray();
            for (JsonElement stamp : command.getAsJsonArray("stamps")) {
                row.add(reader().searchOffset(queue, stamp.getAsLong()));
            }
            rows.add(row);
        }
        return of("offsets", rows);
    }

    private static JsonObject expire() throws Exception {
        Properties properties = new Properties();
        properties.setProperty("fileReservedTime", "0");
        admin().updateBrokerConfig(broker, properties);
        admin().deleteExpiredCommitLogByAddr(broker);
        return new JsonObject();
    }

    private static JsonObject check(JsonObject command) throws Exception {
        String topic = command.has("topic") ? command.get("topic").getAsString() : null;
        return of("said", JSON.toJsonTree(admin().checkRocksdbCqWriteProgress(broker, topic, 0L)));
    }

    private static JsonObject close() {
        if (reader != null) {
            reader.shutdown();
            reader = null;
        }
        if (producer != null) {
            producer.shutdown();
            producer = null;
        }
        if (admin != null) {
            admin.shutdown();
            admin = null;
        }
        return new JsonObject();
    }

    private static List<MessageQueue> queues(JsonObject command) {
        List<MessageQueue> queues = new ArrayList<>();
        for (JsonElement each : command.getAsJsonArray("queues")) {
            JsonArray queue = each.getAsJsonArray();
            queues.add(new MessageQueue(queue.get(0).getAsString(), brokerName, queue.get(1).getAsInt()));
        }
        return queues;
    }

    private static JsonObject of(String key, JsonElement value) {
        JsonObject made = new JsonObject();
        made.add(key, value);
        return made;
    }

    private static DefaultMQPullConsumer reader() throws Exception {
        if (reader == null) {
            DefaultMQPullConsumer made = new DefaultMQPullConsumer("readers");
            made.setNamesrvAddr(nameServer);
            made.setInstanceName("reader-" + instances++);
            made.setVipChannelEnabled(false);
            made.setMqClientApiTimeout(PATIENCE_MS);
            made.start();
            // LMQ queues have no route: a client goes to the broker that it knows from another topic
            made.fetchSubscribeMessageQueues(brokerName);
            reader = made;
        }
        return reader;
    }

    private static TransactionMQProducer producer() throws Exception {
        if (producer == null) {
            TransactionMQProducer made = new TransactionMQProducer("producers");
            made.setNamesrvAddr(nameServer);
            made.setInstanceName("producer-" + instances++);
            made.setVipChannelEnabled(false);
            made.setMqClientApiTimeout(PATIENCE_MS);
            made.setSendMsgTimeout(10_000);
            made.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
                @Override
                public String hookName() {
                    return "slashes";
                }

                @Override
                public void sendMessageBefore(SendMessageContext sending) {
                    Message message = sending.getMessage();
                    String queues = message.getProperty(MessageConst.PROPERTY_INNER_MULTI_DISPATCH);
                    if (queues != null) {
                        dispatch(message, queues.replace(NO_SLASH, '/'));
                    }
                }

                @Override
                public void sendMessageAfter(SendMessageContext sending) {}
            });
            made.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object end) {
                    return (LocalTransactionState) end;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    String name = name(message.getBody());
                    return ANSWERS.entrySet().stream()
                            .filter(each -> name.startsWith(each.getKey()))
                            .map(Map.Entry::getValue)
                            .findFirst()
                            .orElse(LocalTransactionState.UNKNOW);
                }
            });
            made.start();
            producer = made;
        }
        return producer;
    }

    private static DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt(PATIENCE_MS);
            made.setNamesrvAddr(nameServer);
            made.setInstanceName("admin-" + instances++);
            made.setVipChannelEnabled(false);
            made.setMqClientApiTimeout(PATIENCE_MS);
            made.start();
            admin = made;
        }
        return admin;
    }
}
