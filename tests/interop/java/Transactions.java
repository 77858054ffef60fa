package interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQ's own producer of transactions; what it decides stands in the properties of each message. */
final class Transactions {
    private static final class Producer implements TransactionListener {
        final List<Object> checks = new ArrayList<>();
        TransactionMQProducer producer;

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("decision"));
        }

        @Override
        public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            String decision = message.getUserProperty("decisionOfCheck");
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            one.put("topic", message.getTopic());
            one.put("queueId", message.getQueueId());
            one.put("times", message.getUserProperty("TRANSACTION_CHECK_TIMES"));
            one.put("transactionId", message.getTransactionId());
            checks.add(one);
            notifyAll();
            return LocalTransactionState.valueOf(decision);
        }

        synchronized List<Object> waitFor(int count, long millis) throws InterruptedException {
            long deadline = System.nanoTime() + millis * 1_000_000;
            while (checks.size() < count) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return new ArrayList<>(checks);
        }
    }

    private final Map<String, Producer> producers = new ConcurrentHashMap<>();

    Map<String, Object> perform(String command, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (command) {
            case "transactionStart":
                producers.put(name, start(request));
                return new LinkedHashMap<>();
            case "transactionSend":
                return send(producers.get(name).producer, request);
            case "transactionChecks":
                return new LinkedHashMap<>(Map.of("checks", producers.get(name)
                    .waitFor(request.getIntValue("count"), request.getLongValue("millis"))));
            default:
                producers.remove(name).producer.shutdown();
                return new LinkedHashMap<>();
        }
    }

    private static Producer start(JSONObject request) throws Exception {
        Producer started = new Producer();
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"));
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(request.getString("name") + "-" + System.nanoTime());
        // The broker asks only producers that have sent a heartbeat; by default the second comes after 30 s.
        producer.setHeartbeatBrokerInterval(500);
        producer.setPollNameServerInterval(500);
        producer.setTransactionListener(started);
        producer.setSendMsgTimeout(Clients.SEND_TIMEOUT_MS);
        producer.start();
        started.producer = producer;
        return started;
    }

    private static Map<String, Object> send(TransactionMQProducer producer, JSONObject request) throws Exception {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < request.getIntValue("count"); i++) {
            Message message = new Message(request.getString("topic"), "tag", "key" + i,
                (request.getString("prefix") + i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("decision", request.getString("decision"));
            message.putUserProperty("decisionOfCheck", request.getString("decisionOfCheck"));
            String immunity = request.getString("immunity");
            if (immunity != null) {
                message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", immunity);
            }
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("status", result.getSendStatus().name());
            one.put("state", result.getLocalTransactionState().name());
            one.put("queueId", result.getMessageQueue().getQueueId());
            one.put("msgId", result.getMsgId());
            one.put("transactionId", result.getTransactionId());
            results.add(one);
        }
        return new LinkedHashMap<>(Map.of("results", results));
    }
}
