package interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own producers and consumers, found through a name server as an application finds them. */
final class Clients {
    /** Ten times RocketMQ's default, which a JVM's first send can take on a busy machine. */
    static final int SEND_TIMEOUT_MS = 30_000;
    /** For requests to name servers, and heartbeats; 3 s by default. */
    private static final int API_TIMEOUT_MS = 10_000;
    /** How often clients ask for routes and send heartbeats; 30 s by default. */
    static final int POLL_MS = 300;
    /** How often consumers commit; 5 s by default. */
    private static final int COMMIT_MS = 1000;

    /** What one consumer was given, in the order in which it came. */
    private static final class Consumer {
        final List<Object> received = new ArrayList<>();
        Runnable shutdown = () -> { };
        volatile boolean stopped;
        /** How often the listener fails with each message. */
        int failures;
        /** Delay level that the listener asks for; 0 leaves it to the broker. */
        int retryLevel;

        /** Whether the listener fails with these messages. */
        boolean fails(List<MessageExt> messages) {
            return messages.get(0).getReconsumeTimes() < failures;
        }

        synchronized void receive(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                Map<String, Object> one = new LinkedHashMap<>();
                one.put("broker", message.getBrokerName());
                one.put("queueId", message.getQueueId());
                one.put("queueOffset", message.getQueueOffset());
                one.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                one.put("tags", message.getTags());
                one.put("keys", message.getKeys());
                one.put("reconsumeTimes", message.getReconsumeTimes());
                one.put("bornTimestamp", message.getBornTimestamp());
                one.put("receivedTimestamp", System.currentTimeMillis());
                received.add(one);
            }
            notifyAll();
        }

        synchronized List<Object> waitFor(int count, long millis) throws InterruptedException {
            long deadline = System.nanoTime() + millis * 1_000_000;
            while (received.size() < count) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return new ArrayList<>(received);
        }
    }

    private final Map<String, Consumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQProducer> connected = new ConcurrentHashMap<>();

    Map<String, Object> perform(String command, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (command) {
            case "produce":
                return produce(request);
            case "consume":
                consumers.put(name, start(request));
                return new LinkedHashMap<>();
            case "received":
                return new LinkedHashMap<>(Map.of("messages", consumers.get(name)
                    .waitFor(request.getIntValue("count"), request.getLongValue("millis"))));
            case "connect":
                // Heartbeats go to the brokers of topics that it has sent to.
                DefaultMQProducer producer = producer(request);
                connected.put(name, producer);
                return new LinkedHashMap<>(Map.of("offsetId", producer.send(new Message(
                    request.getString("topic"), "live".getBytes(StandardCharsets.UTF_8))).getOffsetMsgId()));
            case "disconnect":
                connected.remove(name).shutdown();
                return new LinkedHashMap<>();
            default:
                Consumer consumer = consumers.remove(name);
                consumer.stopped = true;
                consumer.shutdown.run();
                return new LinkedHashMap<>(Map.of("messages", consumer.waitFor(0, 0)));
        }
    }

    private static DefaultMQProducer producer(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group"), Security.hook());
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName("producer-" + System.nanoTime());
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setMqClientApiTimeout(API_TIMEOUT_MS);
        Security.apply(producer);
        if (request.containsKey("compression")) {
            Rocket.compress(producer, request.getString("compression"));
        }
        producer.start();
        return producer;
    }

    /** One result for each send: status, number of messages, broker, queue, offset id. */
    private static Map<String, Object> produce(JSONObject request) throws Exception {
        DefaultMQProducer producer = producer(request);
        try {
            List<Object> results = new ArrayList<>();
            int batchSize = request.getIntValue("batch");
            JSONArray brokers = request.getJSONArray("brokers");
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < request.getIntValue("count"); i++) {
                Message message = new Message(request.getString("topic"), request.getString("tags"),
                    "key" + i, (request.getString("prefix") + i).getBytes(StandardCharsets.UTF_8));
                message.setDelayTimeLevel(request.getIntValue("delayLevel"));
                batch.add(message);
                if (batch.size() >= batchSize) {
                    SendResult result = batchSize > 0 ? producer.send(batch) : send(producer, message, i, brokers);
                    results.add(List.of(result.getSendStatus().name(), batch.size(),
                        result.getMessageQueue().getBrokerName(), result.getMessageQueue().getQueueId(),
                        String.valueOf(result.getOffsetMsgId())));
                    batch = new ArrayList<>();
                }
            }
            return new LinkedHashMap<>(Map.of("results", results));
        } finally {
            producer.shutdown();
        }
    }

    /** To one of the queues that the client chooses from, or to the first queues of these brokers in turn. */
    private static SendResult send(DefaultMQProducer producer, Message message, int number, JSONArray brokers)
        throws Exception {
        if (brokers.isEmpty()) {
            return producer.send(message);
        }
        String broker = brokers.getString(number % brokers.size());
        return producer.send(message, new MessageQueue(message.getTopic(), broker, 0));
    }

    private static Consumer start(JSONObject request) throws Exception {
        return request.getString("mode").equals("lite") ? startLite(request) : startPush(request);
    }

    /** Clients find new topics, each other and brokers that come back at once, not after up to 30 s. */
    static void poll(ClientConfig client) {
        client.setPollNameServerInterval(POLL_MS);
        client.setHeartbeatBrokerInterval(POLL_MS);
        client.setPersistConsumerOffsetInterval(COMMIT_MS);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        Security.apply(client);
    }

    private static Consumer startPush(JSONObject request) throws Exception {
        Consumer consumer = new Consumer();
        String mode = request.getString("mode");
        DefaultMQPushConsumer push = new DefaultMQPushConsumer(
            request.getString("group"), Security.hook(), new AllocateMessageQueueAveragely());
        push.setNamesrvAddr(request.getString("namesrv"));
        push.setInstanceName(request.getString("name"));
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // A message that a listener has not returned from at the shutdown is not committed.
        push.setAwaitTerminationMillisWhenShutdown(5_000);
        push.subscribe(request.getString("topic"), request.getString("expression"));
        consumer.failures = request.getIntValue("failures");
        consumer.retryLevel = request.getIntValue("retryLevel");
        poll(push);
        if (request.containsKey("maxReconsumeTimes")) {
            push.setMaxReconsumeTimes(request.getIntValue("maxReconsumeTimes"));
        }
        if (mode.equals("broadcast")) {
            Rocket.broadcast(push);
        }
        if (mode.equals("pop")) {
            Rocket.rebalanceAtBroker(push);
        }
        if (mode.equals("orderly")) {
            push.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                consumer.receive(messages);
                context.setSuspendCurrentQueueTimeMillis(50);
                return consumer.fails(messages) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                consumer.receive(messages);
                context.setDelayLevelWhenNextConsume(consumer.retryLevel);
                return consumer.fails(messages) ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.shutdown = push::shutdown;
        push.start();
        return consumer;
    }

    private static Consumer startLite(JSONObject request) throws Exception {
        Consumer consumer = new Consumer();
        DefaultLitePullConsumer lite = new DefaultLitePullConsumer(request.getString("group"));
        lite.setNamesrvAddr(request.getString("namesrv"));
        lite.setInstanceName(request.getString("name"));
        poll(lite);
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lite.subscribe(request.getString("topic"), request.getString("expression"));
        lite.start();
        Thread poller = new Thread(() -> {
            while (!consumer.stopped) {
                consumer.receive(lite.poll(200));
            }
            // By itself it commits every 5 s only.
            lite.commitSync();
            lite.shutdown();
        }, "lite");
        poller.setDaemon(true);
        consumer.shutdown = () -> {
            try {
                poller.join(10_000);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        };
        poller.start();
        return consumer;
    }
}
