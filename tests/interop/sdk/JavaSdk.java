import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.GsonBuilder;
import org.apache.rocketmq.shaded.com.google.gson.JsonArray;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;

/** Apache's Java SDK of gRPC: the commands and answers of python_sdk.py. */
public final class JavaSdk {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final Map<String, AutoCloseable> clients = new ConcurrentHashMap<>();
    private final Map<String, List<Object>> consumed = new ConcurrentHashMap<>();
    private final Map<String, MessageView> messages = new ConcurrentHashMap<>();

    private JavaSdk(String endpoints) {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoints)
            .setRequestTimeout(Duration.ofSeconds(20))
            .build();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // The SDK prints, too.
        System.setOut(System.err);
        JavaSdk sdk = new JavaSdk(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new TreeMap<>();
            try {
                answer.put("result", sdk.perform(GSON.fromJson(line, JsonObject.class)));
            } catch (Throwable error) {
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                answer.put("error", text.toString());
            }
            answers.println(GSON.toJson(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private Object perform(JsonObject asked) throws Exception {
        String name = asked.get("name").getAsString();
        switch (asked.get("do").getAsString()) {
            case "producer":
                return producer(name, asked);
            case "send":
                return send(name, asked);
            case "simple":
                clients.put(name, provider.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration)
                    .setConsumerGroup(asked.get("group").getAsString())
                    .setAwaitDuration(Duration.ofSeconds(5))
                    .setSubscriptionExpressions(subscription(asked))
                    .build());
                return null;
            case "receive":
                return receive(name, asked);
            case "ack":
                for (String body : texts(asked.getAsJsonArray("bodies"))) {
                    simple(name).ack(messages.get(name + " " + body));
                }
                return null;
            case "drain":
                return drain(name, asked);
            case "push":
                return push(name, asked);
            case "consumed":
                return consumed.get(name);
            case "end":
                clients.remove(name).close();
                return null;
            default:
                throw new IllegalArgumentException(asked.toString());
        }
    }

    private Object producer(String name, JsonObject asked) throws Exception {
        ProducerBuilder builder = provider.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(texts(asked.getAsJsonArray("topics")).toArray(new String[0]));
        if (asked.get("transactions").getAsBoolean()) {
            builder.setTransactionChecker(message -> TransactionResolution.COMMIT);
        }
        clients.put(name, builder.build());
        return null;
    }

    private Object send(String name, JsonObject asked) throws Exception {
        Producer producer = (Producer) clients.get(name);
        for (String body : texts(asked.getAsJsonArray("bodies"))) {
            MessageBuilder builder = provider.newMessageBuilder()
                .setTopic(asked.get("topic").getAsString())
                .setKeys("key-" + body)
                .addProperty("colour", "red")
                .setBody(body.getBytes(StandardCharsets.UTF_8));
            if (asked.has("tag")) {
                builder.setTag(asked.get("tag").getAsString());
            }
            if (asked.has("group")) {
                builder.setMessageGroup(asked.get("group").getAsString());
            }
            if (asked.has("at_ms")) {
                builder.setDeliveryTimestamp(asked.get("at_ms").getAsLong());
            }
            if (!asked.has("transaction")) {
                producer.send(builder.build());
                continue;
            }
            Transaction opened = producer.beginTransaction();
            producer.send(builder.build(), opened);
            if (asked.get("transaction").getAsString().equals("commit")) {
                opened.commit();
            } else {
                opened.rollback();
            }
        }
        return null;
    }

    private Object receive(String name, JsonObject asked) throws Exception {
        Duration invisible = Duration.ofSeconds(asked.get("invisible_s").getAsLong());
        List<Object> found = new ArrayList<>();
        for (MessageView message : simple(name).receive(asked.get("number").getAsInt(), invisible)) {
            messages.put(name + " " + body(message), message);
            found.add(described(message));
        }
        return found;
    }

    /** Receives so many messages and acknowledges each, with some receives in flight: the seconds that it takes. */
    private Object drain(String name, JsonObject asked) throws Exception {
        AtomicInteger left = new AtomicInteger(asked.get("number").getAsInt());
        CompletableFuture<Void> done = new CompletableFuture<>();
        long began = System.nanoTime();
        for (int loop = 0; loop < asked.get("in_flight").getAsInt(); loop++) {
            receiveAgain(simple(name), Duration.ofSeconds(asked.get("invisible_s").getAsLong()), left, done);
        }
        done.get(5, TimeUnit.MINUTES);
        return (System.nanoTime() - began) / 1e9;
    }

    private static void receiveAgain(SimpleConsumer consumer, Duration invisible, AtomicInteger left,
        CompletableFuture<Void> done) {
        consumer.receiveAsync(32, invisible)
            .thenCompose(found -> CompletableFuture.allOf(found.stream()
                .map(message -> consumer.ackAsync(message).thenRun(() -> {
                    if (left.decrementAndGet() == 0) {
                        done.complete(null);
                    }
                }))
                .toArray(CompletableFuture[]::new)))
            .whenComplete((all, error) -> {
                if (error != null) {
                    done.completeExceptionally(error);
                } else if (!done.isDone()) {
                    receiveAgain(consumer, invisible, left, done);
                }
            });
    }

    private Object push(String name, JsonObject asked) throws Exception {
        List<String> failing = asked.has("failing") ? texts(asked.getAsJsonArray("failing")) : List.of();
        List<Object> seen = new CopyOnWriteArrayList<>();
        consumed.put(name, seen);
        clients.put(name, provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(asked.get("group").getAsString())
            .setSubscriptionExpressions(subscription(asked))
            .setMessageListener(message -> {
                seen.add(described(message));
                return failing.contains(body(message)) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
        return null;
    }

    private SimpleConsumer simple(String name) {
        return (SimpleConsumer) clients.get(name);
    }

    private static Map<String, FilterExpression> subscription(JsonObject asked) {
        return Map.of(asked.get("topic").getAsString(), FilterExpression.SUB_ALL);
    }

    private static List<String> texts(JsonArray array) {
        List<String> found = new ArrayList<>();
        for (JsonElement element : array) {
            found.add(element.getAsString());
        }
        return found;
    }

    private static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        return StandardCharsets.UTF_8.decode(body).toString();
    }

    private static Map<String, Object> described(MessageView message) {
        Map<String, Object> found = new TreeMap<>();
        found.put("body", body(message));
        found.put("attempt", message.getDeliveryAttempt());
        found.put("tag", message.getTag().orElse(null));
        found.put("group", message.getMessageGroup().orElse(null));
        found.put("properties", message.getProperties());
        return found;
    }
}
