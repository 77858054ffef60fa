package interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Producers that send one message after the other while the caller does something else to their brokers. */
final class SteadyProducers {
    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final JSONObject request;
        private final Map<String, String> outcomes = new LinkedHashMap<>();
        private int acknowledged;
        private volatile boolean stopped;

        Sender(DefaultMQProducer producer, JSONObject request) {
            super("sender");
            setDaemon(true);
            this.producer = producer;
            this.request = request;
        }

        @Override
        public void run() {
            for (int i = 0; !stopped; i++) {
                String body = request.getString("prefix") + i;
                String outcome;
                try {
                    Thread.sleep(request.getLongValue("pauseMillis"));
                    outcome = producer.send(new Message(request.getString("topic"), "", "key" + i,
                        body.getBytes(StandardCharsets.UTF_8))).getSendStatus().name();
                } catch (Exception problem) {
                    outcome = problem.getClass().getSimpleName();
                }
                note(body, outcome);
            }
        }

        private synchronized void note(String body, String outcome) {
            outcomes.put(body, outcome);
            acknowledged += outcome.equals("SEND_OK") ? 1 : 0;
            notifyAll();
        }

        synchronized int waitFor(int count, long millis) throws InterruptedException {
            long deadline = System.nanoTime() + millis * 1_000_000;
            while (acknowledged < count) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return acknowledged;
        }

        Map<String, String> end() throws InterruptedException {
            stopped = true;
            join(60_000);
            if (isAlive()) {
                throw new IllegalStateException("the producer still sends its last message");
            }
            producer.shutdown();
            return outcomes;
        }
    }

    private final Map<String, Sender> senders = new ConcurrentHashMap<>();

    Map<String, Object> perform(String command, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (command) {
            case "steadyStart":
                senders.put(name, start(request));
                return new LinkedHashMap<>();
            case "steadyAcknowledged":
                return new LinkedHashMap<>(Map.of("acknowledged", senders.get(name)
                    .waitFor(request.getIntValue("count"), request.getLongValue("millis"))));
            default:
                return new LinkedHashMap<>(Map.of("outcomes", senders.remove(name).end()));
        }
    }

    private static Sender start(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-steady");
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(request.getString("name") + "-" + System.nanoTime());
        producer.setPollNameServerInterval(request.getIntValue("pollMillis"));
        producer.setHeartbeatBrokerInterval(request.getIntValue("pollMillis"));
        producer.start();
        Sender sender = new Sender(producer, request);
        sender.start();
        return sender;
    }
}
