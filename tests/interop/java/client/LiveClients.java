package interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A producer and a consumer that stay connected while mqadmin looks at them. */
final class LiveClients {
    private static final ConcurrentLinkedQueue<String> BODIES = new ConcurrentLinkedQueue<>();
    private static DefaultMQProducer producer;
    private static DefaultMQPushConsumer consumer;

    private LiveClients() {
    }

    /** Connects both: the producer with one message, the consumer from the start of the topic. */
    static String join(String nameServers, String topic, String group) throws Exception {
        BODIES.clear();
        String instance = String.valueOf(System.nanoTime());
        producer = new DefaultMQProducer(group + "-producer");
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(instance + "-producer");
        producer.setSendMsgTimeout(30000);
        producer.start();
        String id = producer.send(new Message(topic, "tag", "live", "live".getBytes(StandardCharsets.UTF_8)))
            .getOffsetMsgId();
        consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(instance + "-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                BODIES.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return id;
    }

    /** Bodies that the consumer has received so far. */
    static String received() {
        return String.join("\n", BODIES);
    }

    /** Disconnects both. */
    static String leave() {
        consumer.shutdown();
        producer.shutdown();
        return "";
    }
}
