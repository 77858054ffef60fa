package interop;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;

/** Producers that send one message after the other, and note when each was answered, and by which broker. */
final class TimedProducers {
    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final JSONObject request;
        /** Of each message: body, status or exception, System.nanoTime() at its end, broker, queue, its offset there. */
        private final List<Object> sent = new ArrayList<>();
        private final Map<String, Integer> acceptedBy = new HashMap<>();
        private volatile boolean stopped;

        Sender(DefaultMQProducer producer, JSONObject request) {
            super("timed sender");
            setDaemon(true);
            this.producer = producer;
            this.request = request;
        }

        @Override
        public void run() {
            for (int i = 0; !stopped; i++) {
                String body = request.getString("prefix") + i;
                String outcome;
                String broker = "";
                int queueId = -1;
                long queueOffset = -1;
                try {
                    Thread.sleep(request.getLongValue("pauseMillis"));
                    SendResult result = producer.send(new Message(request.getString("topic"), "", "key" + i,
                        body.getBytes(StandardCharsets.UTF_8)));
                    outcome = result.getSendStatus().name();
                    InetSocketAddress stored =
                        (InetSocketAddress) MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getAddress();
                    broker = stored.getAddress().getHostAddress() + ":" + stored.getPort();
                    queueId = result.getMessageQueue().getQueueId();
                    queueOffset = result.getQueueOffset();
                } catch (Exception problem) {
                    outcome = problem.getClass().getSimpleName();
                }
                note(outcome, broker, List.of(body, outcome, System.nanoTime(), broker, queueId, queueOffset));
            }
        }

        private synchronized void note(String outcome, String broker, List<Object> all) {
            sent.add(all);
            if (outcome.equals(SendStatus.SEND_OK.name())) {
                acceptedBy.merge(broker, 1, Integer::sum);
            }
            notifyAll();
        }

        synchronized int waitFor(String broker, int count, long millis) throws InterruptedException {
            long deadline = System.nanoTime() + millis * 1_000_000;
            while (accepted(broker) < count) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return accepted(broker);
        }

        /** By one broker, or by all of them for an empty address. */
        private int accepted(String broker) {
            return broker.isEmpty() ? acceptedBy.values().stream().mapToInt(Integer::intValue).sum()
                : acceptedBy.getOrDefault(broker, 0);
        }

        List<Object> end() throws InterruptedException {
            stopped = true;
            join(60_000);
            if (isAlive()) {
                throw new IllegalStateException("the producer still sends its last message");
            }
            producer.shutdown();
            return sent;
        }
    }

    private final Map<String, Sender> senders = new ConcurrentHashMap<>();

    Map<String, Object> perform(String command, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (command) {
            case "timedStart":
                senders.put(name, start(request));
                return new LinkedHashMap<>(Map.of("nanos", System.nanoTime()));
            case "timedAccepted":
                return new LinkedHashMap<>(Map.of("accepted", senders.get(name).waitFor(
                    request.getString("broker"), request.getIntValue("count"), request.getLongValue("millis"))));
            case "timedEnd":
                Sender sender = senders.remove(name);
                return new LinkedHashMap<>(Map.of("sent", sender == null ? List.of() : sender.end()));
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static Sender start(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-timed");
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(request.getString("name") + "-" + System.nanoTime());
        Clients.poll(producer);
        // A heartbeat to a broker that hangs delays its routes no longer than those of an application's producer.
        producer.setMqClientApiTimeout(3_000);
        producer.setPollNameServerInterval(request.getIntValue("pollMillis"));
        producer.setHeartbeatBrokerInterval(request.getIntValue("pollMillis"));
        producer.start();
        Sender sender = new Sender(producer, request);
        sender.start();
        return sender;
    }
}
