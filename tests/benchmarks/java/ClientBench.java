package interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own clients as a load on any broker, measured inside the JVM.
 */
public final class ClientBench {
    private static final int WITHIN_MINUTES = 10;
    private static final int TOPIC_WITHIN_SECONDS = 20;
    private static final int REPLICATING_WITHIN_SECONDS = 60;

    private ClientBench() {
    }

    static Map<String, Object> perform(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "send":
                return send(request);
            case "drain":
                return drain(request);
            case "latency":
                return latency(request);
            default:
                throw new IllegalArgumentException("unknown command " + request);
        }
    }

    /**
     * Sends until a time or a count, single messages or batches, each of several threads one after the other; or by one
     * thread, asynchronously, with as many in flight. Anything but SEND_OK is an error.
     */
    private static Map<String, Object> send(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        int threads = request.getIntValue("threads");
        int batch = request.getIntValue("batch");
        long count = request.containsKey("count") ? request.getLongValue("count") : Long.MAX_VALUE;
        byte[] body = new byte[request.getIntValue("size")];
        Arrays.fill(body, (byte) 'x');
        DefaultMQProducer producer = producer(request);
        AtomicLong taken = new AtomicLong();
        AtomicLong sent = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try {
            sendUntilOk(producer, new Message(topic, body));
            long began = System.nanoTime();
            long end = began + request.getLongValue("millis") * 1_000_000;
            if (request.getBooleanValue("isAsync")) {
                sendAsync(producer, topic, body, threads, end, sent, failure);
            } else {
                List<Thread> running = new ArrayList<>();
                for (int number = 0; number < threads; number++) {
                    Thread thread = new Thread(() -> {
                        try {
                            while (System.nanoTime() < end && taken.getAndAdd(batch) < count) {
                                requireOk(batch == 1 ? producer.send(new Message(topic, body))
                                    : producer.send(batchOf(topic, body, batch)));
                                sent.addAndGet(batch);
                            }
                        } catch (Throwable problem) {
                            failure.compareAndSet(null, problem);
                        }
                    });
                    running.add(thread);
                    thread.start();
                }
                for (Thread thread : running) {
                    thread.join();
                }
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            return Map.of("messages", sent.get(), "seconds", seconds);
        } finally {
            producer.shutdown();
        }
    }

    /** Returns when all that was sent is answered. */
    private static void sendAsync(DefaultMQProducer producer, String topic, byte[] body, int inFlight, long end,
        AtomicLong sent, AtomicReference<Throwable> failure) throws Exception {
        Semaphore free = new Semaphore(inFlight);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                try {
                    requireOk(result);
                    sent.incrementAndGet();
                } catch (IllegalStateException problem) {
                    failure.compareAndSet(null, problem);
                }
                free.release();
            }

            @Override
            public void onException(Throwable problem) {
                failure.compareAndSet(null, problem);
                free.release();
            }
        };
        while (System.nanoTime() < end && failure.get() == null) {
            free.acquire();
            producer.send(new Message(topic, body), callback);
        }
        free.acquire(inFlight);
    }

    private static void requireOk(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a send ended with " + result.getSendStatus());
        }
    }

    private static List<Message> batchOf(String topic, byte[] body, int number) {
        List<Message> messages = new ArrayList<>(number);
        for (int index = 0; index < number; index++) {
            messages.add(new Message(topic, body));
        }
        return messages;
    }

    /** Consumes a backlog from its start: the time from the first message to the last. */
    private static Map<String, Object> drain(JSONObject request) throws Exception {
        int count = request.getIntValue("count");
        CountDownLatch left = new CountDownLatch(count);
        AtomicLong bytes = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicInteger seen = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer(request, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            for (MessageExt message : messages) {
                bytes.addAndGet(message.getBody().length);
                seen.incrementAndGet();
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!left.await(WITHIN_MINUTES, TimeUnit.MINUTES)) {
                throw new IllegalStateException(seen.get() + " of " + count + " messages");
            }
            return Map.of("seconds", (System.nanoTime() - first.get()) / 1e9, "bytes", bytes.get());
        } finally {
            consumer.shutdown();
        }
    }

    /** Sends at a rate to a consumer that waits: the time from before the send to the listener. */
    private static Map<String, Object> latency(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        int rate = request.getIntValue("rate");
        int number = rate * request.getIntValue("seconds");
        CountDownLatch left = new CountDownLatch(number);
        CountDownLatch ready = new CountDownLatch(1);
        LongList latencies = new LongList();
        DefaultMQPushConsumer consumer = consumer(request, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                if (message.getBody().length < Long.BYTES) {
                    ready.countDown();
                    continue;
                }
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                synchronized (latencies) {
                    latencies.add(now - sent);
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = producer(request);
        try {
            sendUntilOk(producer, new Message(topic, new byte[1]));
            awaitTopic(producer, topic);
            consumer.start();
            // Until it pulls all queues, also those that came by the first send.
            do {
                for (int queue = 0; queue < 16; queue++) {
                    producer.send(new Message(topic, new byte[1]));
                }
            } while (!ready.await(100, TimeUnit.MILLISECONDS));
            Thread.sleep(2000);
            byte[] filling = new byte[request.getIntValue("size")];
            long began = System.nanoTime();
            for (int index = 0; index < number; index++) {
                long due = began + index * 1_000_000_000L / rate;
                for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                    TimeUnit.NANOSECONDS.sleep(wait);
                }
                byte[] body = filling.clone();
                ByteBuffer.wrap(body).putLong(System.nanoTime());
                producer.sendOneway(new Message(topic, body));
            }
            if (!left.await(1, TimeUnit.MINUTES)) {
                throw new IllegalStateException(left.getCount() + " of " + number + " messages did not come");
            }
            synchronized (latencies) {
                long[] sorted = latencies.sorted();
                return Map.of("messages", number, "p50Micros", sorted[(number - 1) / 2] / 1e3,
                    "p99Micros", sorted[(int) Math.ceil(number * 0.99) - 1] / 1e3);
            }
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
    }

    private static DefaultMQProducer producer(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-producer");
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(String.valueOf(System.nanoTime()));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    /** Sends until it ends with SEND_OK: a broker registers seconds after its start, and its slave connects then. */
    private static void sendUntilOk(DefaultMQProducer producer, Message message) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(REPLICATING_WITHIN_SECONDS);
        while (true) {
            String seen;
            try {
                SendStatus status = producer.send(message).getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    return;
                }
                seen = status.name();
            } catch (MQClientException notRegistered) {
                seen = notRegistered.getMessage();
            }
            if (System.nanoTime() > end) {
                throw new IllegalStateException("no SEND_OK within " + REPLICATING_WITHIN_SECONDS + " s: " + seen);
            }
            Thread.sleep(100);
        }
    }

    /** Waits until the name server has the topic: a consumer asks again for an unknown one after 30 s only. */
    private static void awaitTopic(DefaultMQProducer producer, String topic) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TOPIC_WITHIN_SECONDS);
        while (true) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException unknown) {
                if (System.nanoTime() > end) {
                    throw unknown;
                }
                Thread.sleep(50);
            }
        }
    }

    private static DefaultMQPushConsumer consumer(JSONObject request, ConsumeFromWhere from) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(String.valueOf(System.nanoTime()));
        consumer.setConsumeFromWhere(from);
        consumer.subscribe(request.getString("topic"), "*");
        return consumer;
    }

    /** A growing array without boxes. */
    private static final class LongList {
        private long[] values = new long[1024];
        private int size;

        void add(long value) {
            if (size == values.length) {
                values = Arrays.copyOf(values, 2 * size);
            }
            values[size++] = value;
        }

        long[] sorted() {
            long[] sorted = Arrays.copyOf(values, size);
            Arrays.sort(sorted);
            return sorted;
        }
    }
}
