// What a broker plugin does before it drops a ledger: the same request, by Pulsar's own Java client.
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

class BrokerPlugin {
    static final String TOPIC = "persistent://pulsar/system/__ledger_deletion";
    static final String REQUEST = "{\"topicName\":\"%s\",\"ledgerComponent\":\"MANAGED_LEDGER\","
        + "\"ledgerType\":\"LEDGER\",\"ledgerId\":%d}";

    static Producer<byte[]> open(PulsarClient client) throws Exception {
        return client.newProducer().topic(TOPIC).enableBatching(false).create();
    }

    /** managedLedger: tenant/ns/persistent/encodedName. Drop the ledger from the list only once this has returned. */
    static MessageId announce(Producer<byte[]> producer, String managedLedger, long ledgerId) throws Exception {
        byte[] request = String.format(REQUEST, managedLedger, ledgerId).getBytes("UTF-8");
        return producer.newMessage().key("data:" + managedLedger).value(request).send();
    }
}
