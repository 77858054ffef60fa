package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Method;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAConnection;
import org.apache.rocketmq.store.ha.HAConnectionState;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/**
 * Runs real RocketMQ stores for the benchmarks and measures inside the JVM, so that what is measured is the store
 * and not the pipe to it.
 *
 * <p>Each line on stdin is {@code {"id": n, "do": COMMAND, ...}}; each gets one line {@code {"id": n, "result": ...}}
 * or {@code {"id": n, "error": "..."}} on stdout. The trioha side of the benchmarks answers the same commands.
 */
public final class BenchDriver {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private static final class Opened {
        final DefaultMessageStore store;
        final BrokerController broker;

        Opened(DefaultMessageStore store, BrokerController broker) {
            this.store = store;
            this.broker = broker;
        }
    }

    private final Map<String, Opened> opened = new ConcurrentHashMap<>();
    private final PrintStream answers;

    private BenchDriver(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BenchDriver driver = new BenchDriver(answers);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            Thread thread = new Thread(() -> driver.handle(request), "command");
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }

    private void handle(JSONObject request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.getLongValue("id"));
        try {
            answer.put("result", perform(request));
        } catch (Throwable problem) {
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            answer.put("error", trace.toString());
        }
        String line = JSON.toJSONString(answer);
        synchronized (answers) {
            answers.println(line);
        }
    }

    private Map<String, Object> perform(JSONObject request) throws Exception {
        String name = request.getString("store");
        String command = request.getString("do");
        if (command.equals("open")) {
            return open(name, request.getJSONObject("config"), request.getString("haMasterAddress"));
        }
        if (command.equals("broker")) {
            return openBroker(name, request.getJSONObject("config"));
        }
        Opened target = opened.get(name);
        if (target == null) {
            throw new IllegalStateException("no store named " + name + " is open");
        }
        switch (command) {
            case "fill":
                return fill(target.store, request.getIntValue("bodyBytes"), request.getLongValue("bytes"));
            case "catchUp":
                return catchUp(target.store, request.getIntValue("slaves"), request.getLongValue("millis"));
            case "alone":
                return awaitNoSlaves(target.store, request.getLongValue("millis"));
            case "close":
                return close(name, target, request.getBooleanValue("remove"));
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    // ---- opening and closing

    private Map<String, Object> open(String name, JSONObject settings, String haMasterAddress) throws Exception {
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        apply(settings, storeConfig, brokerConfig);
        DefaultMessageStore store = Rocket.open(storeConfig, brokerConfig);
        long began = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("the store refused to load " + storeConfig.getStorePathRootDir());
        }
        double loadSeconds = (System.nanoTime() - began) / 1e9;
        long queued = 0;
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                queued += queue.getMaxOffsetInQueue();
            }
        }
        Rocket.start(store, haMasterAddress);
        opened.put(name, new Opened(store, null));
        return Map.of("haPort", Rocket.haPort(store, storeConfig), "maxOffset", store.getMaxPhyOffset(),
            "loadSeconds", loadSeconds, "queued", queued);
    }

    private Map<String, Object> openBroker(String name, JSONObject settings) throws Exception {
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        NettyServerConfig serverConfig = new NettyServerConfig();
        apply(settings, storeConfig, brokerConfig);
        serverConfig.setListenPort(freePort());
        BrokerController broker = Rocket.broker(brokerConfig, serverConfig, new NettyClientConfig(), storeConfig);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker refused to initialize " + storeConfig.getStorePathRootDir());
        }
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        Rocket.startBroker(broker, store, null);
        opened.put(name, new Opened(store, broker));
        return Map.of("listenPort", serverConfig.getListenPort(), "maxOffset", store.getMaxPhyOffset());
    }

    /** A free port whose second lower neighbour, the broker's VIP channel, is free too. */
    private static int freePort() throws Exception {
        InetAddress loopback = InetAddress.getByName("127.0.0.1");
        for (int attempt = 0; ; attempt++) {
            try (ServerSocket listen = new ServerSocket(0, 1, loopback);
                ServerSocket vip = new ServerSocket(listen.getLocalPort() - 2, 1, loopback)) {
                return listen.getLocalPort();
            } catch (BindException taken) {
                if (attempt == 100) {
                    throw taken;
                }
            }
        }
    }

    /**
     * A store that was shut down keeps its files open and mapped until the process ends, so that deleting them frees
     * no memory; one that is to be removed deletes its files itself, and unmaps them.
     */
    private Map<String, Object> close(String name, Opened target, boolean remove) {
        opened.remove(name);
        long began = System.nanoTime();
        if (target.broker != null) {
            target.broker.shutdown();
        } else {
            target.store.shutdown();
            if (remove) {
                target.store.destroy();
            }
        }
        return Map.of("seconds", (System.nanoTime() - began) / 1e9);
    }

    /** Sets each setting on every object that has it; a name that none of them has is an error. */
    private static void apply(JSONObject settings, Object... configs) throws Exception {
        for (Map.Entry<String, Object> setting : settings.entrySet()) {
            boolean known = false;
            for (Object config : configs) {
                known |= set(config, setting.getKey(), String.valueOf(setting.getValue()));
            }
            if (!known) {
                throw new IllegalArgumentException("no such setting: " + setting.getKey());
            }
        }
    }

    private static boolean set(Object config, String key, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(key.charAt(0)) + key.substring(1);
        for (Method method : config.getClass().getMethods()) {
            if (!method.getName().equals(setter) || method.getParameterCount() != 1) {
                continue;
            }
            Class<?> type = method.getParameterTypes()[0];
            if (type == int.class) {
                method.invoke(config, Integer.parseInt(value));
            } else if (type == long.class) {
                method.invoke(config, Long.parseLong(value));
            } else if (type == boolean.class) {
                method.invoke(config, Boolean.parseBoolean(value));
            } else if (type == String.class) {
                method.invoke(config, value);
            } else {
                continue;
            }
            return true;
        }
        return false;
    }

    // ---- work

    /** Appends messages without waiting for them until the log is long enough. */
    private static Map<String, Object> fill(DefaultMessageStore store, int bodyBytes, long bytes) throws Exception {
        byte[] body = new byte[bodyBytes];
        while (store.getMaxPhyOffset() < bytes) {
            PutMessageResult result =
                Rocket.put(store, "Bench", 0, 0, body, new TreeMap<>(), HOST, HOST, false).get();
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("put while filling: " + result.getPutMessageStatus());
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        return Map.of("maxOffset", store.getMaxPhyOffset());
    }

    /** Waits for the first request of a slave, then until so many slaves have acknowledged the whole log. */
    private static Map<String, Object> catchUp(DefaultMessageStore store, int slaves, long millis)
        throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        long maxOffset = store.getMaxPhyOffset();
        long began = 0;
        while (System.nanoTime() < deadline) {
            List<HAConnection> connections = new ArrayList<>(store.getHaService().getConnectionList());
            if (began == 0) {
                if (connections.stream().anyMatch(one -> one.getCurrentState() == HAConnectionState.TRANSFER)) {
                    began = System.nanoTime();
                }
            } else if (connections.stream().filter(one -> one.getSlaveAckOffset() >= maxOffset).count() >= slaves) {
                return Map.of("seconds", (System.nanoTime() - began) / 1e9, "bytes", maxOffset * slaves);
            }
            Thread.sleep(1);
        }
        throw new IllegalStateException(slaves + " slaves did not catch up within " + millis + " ms");
    }

    private static Map<String, Object> awaitNoSlaves(DefaultMessageStore store, long millis) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        while (!store.getHaService().getConnectionList().isEmpty()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("slaves are still connected after " + millis + " ms");
            }
            Thread.sleep(5);
        }
        return Map.of();
    }
}
