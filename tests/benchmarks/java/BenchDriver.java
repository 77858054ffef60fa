package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/**
 * Real RocketMQ stores and clients for the benchmarks, in one JVM whose code is compiled when it counts.
 *
 * <p>Each line on stdin is {@code {"do": COMMAND, ...}}; each gets one line {@code {"result": ...}} or
 * {@code {"error": "..."}} on stdout, in order.
 */
public final class BenchDriver {
    private static final Map<String, DefaultMessageStore> STORES = new HashMap<>();

    private BenchDriver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", perform(JSON.parseObject(line)));
            } catch (Throwable problem) {
                StringWriter trace = new StringWriter();
                problem.printStackTrace(new PrintWriter(trace));
                answer.put("error", trace.toString());
            }
            answers.println(JSON.toJSONString(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> perform(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "open":
                return open(request);
            case "close":
                return close(request.getJSONArray("stores"));
            default:
                return ClientBench.perform(request);
        }
    }

    /** Opens a store and starts it; says how long its load took, and how many messages are in its queues then. */
    private static Map<String, Object> open(JSONObject request) throws Exception {
        Properties settings = new Properties();
        request.getJSONObject("config").forEach((key, value) -> settings.setProperty(key, String.valueOf(value)));
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        MixAll.properties2Object(settings, storeConfig);
        MixAll.properties2Object(settings, brokerConfig);
        DefaultMessageStore store = Rocket.open(storeConfig, brokerConfig);
        long began = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("the store refused to load " + storeConfig.getStorePathRootDir());
        }
        double loadSeconds = (System.nanoTime() - began) / 1e9;
        long queued = 0;
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            queued += queues.values().stream().mapToLong(ConsumeQueueInterface::getMaxOffsetInQueue).sum();
        }
        Rocket.start(store, request.getString("haMasterAddress"));
        STORES.put(request.getString("store"), store);
        return Map.of("loadSeconds", loadSeconds, "queued", queued);
    }

    /**
     * Shuts stores down, all at once, and deletes their files: one that keeps them has them open and mapped until the
     * process ends, so that deleting them frees no memory.
     */
    private static Map<String, Object> close(JSONArray names) {
        names.stream().map(STORES::remove).filter(store -> store != null).toList().parallelStream().forEach(store -> {
            store.shutdown();
            store.destroy();
        });
        return Map.of();
    }
}
