package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.ClientRemotingProcessor;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Runs real RocketMQ message stores, brokers, name servers, clients and mqadmin for the interop tests, in one JVM.
 *
 * <p>Each line on stdin is a JSON object {@code {"id": n, "do": COMMAND, "store": NAME, ...}}; each gets one line
 * {@code {"id": n, "result": {...}}} or {@code {"id": n, "error": "..."}} on stdout, in the order in which they end
 * (a put that waits for a slave delays no other). Everything that RocketMQ itself prints goes to stderr. The process
 * ends with its stdin, without a clean shutdown of what still runs: a clean one is a command.
 *
 * <p>What differs between the versions is in {@code Rocket.java}, one file for each.
 */
public final class StoreDriver {
    private static final int BODY_CRC_MASK = 0x7FFFFFFF;
    private static final int PUTS_IN_FLIGHT_MAX = 64;
    private static final String PULL_GROUP = "interop";
    /** For each request of the client, of which a busy machine may take long over the first. */
    static final int ANSWER_TIMEOUT_MS = 15_000;

    /** A store and, if a whole broker runs around it, that broker. */
    private static final class Opened {
        final DefaultMessageStore store;
        final MessageStoreConfig config;
        final BrokerController broker;

        Opened(DefaultMessageStore store, MessageStoreConfig config, BrokerController broker) {
            this.store = store;
            this.config = config;
            this.broker = broker;
        }
    }

    private static final Set<String> CLIENT_COMMANDS =
        Set.of("produce", "consume", "received", "endConsumer", "connect", "disconnect");

    private final Map<String, Opened> opened = new ConcurrentHashMap<>();
    private final Map<String, NamesrvController> nameServers = new ConcurrentHashMap<>();
    private final PrintStream answers;
    private final Clients clients = new Clients();
    private final Transactions transactions = new Transactions();
    private final Admin admin = new Admin();
    private final TimedProducers timedProducers = new TimedProducers();
    private MQClientAPIImpl client;

    private StoreDriver(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        // As the start script's class does: a broker that sends version 0 is taken for one before 3.0.11.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, String.valueOf(MQVersion.CURRENT_VERSION));
        StoreDriver driver = new StoreDriver(answers);
        ExecutorService workers = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "driver");
            thread.setDaemon(true);
            return thread;
        });
        driver.answer(JSON.parseObject("{\"id\": 0}"), "result", Map.of("ready", true));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            workers.execute(() -> driver.handle(request));
        }
        Runtime.getRuntime().halt(0);
    }

    private void handle(JSONObject request) {
        try {
            answer(request, "result", perform(request));
        } catch (Throwable problem) {
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            answer(request, "error", trace.toString());
        }
    }

    private void answer(JSONObject request, String kind, Object value) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.getLongValue("id"));
        answer.put(kind, value);
        String line = JSON.toJSONString(answer);
        synchronized (answers) {
            answers.println(line);
        }
    }

    private Map<String, Object> perform(JSONObject request) throws Exception {
        String name = request.getString("store");
        String command = request.getString("do");
        if (command.equals("start")) {
            return start(name, request.getJSONObject("config"), request.getString("haMasterAddress"));
        }
        if (command.equals("broker")) {
            return startBroker(
                name, request.getJSONObject("config"), request.getIntValue("listenPort"),
                request.getString("haMasterAddress"));
        }
        if (command.equals("send")) {
            return send(request);
        }
        if (command.equals("mqadmin")) {
            String[] arguments = request.getJSONArray("arguments").toArray(new String[0]);
            return new LinkedHashMap<>(Map.of("printed", admin.run(arguments)));
        }
        if (command.equals("security")) {
            Security.use(request);
            return new LinkedHashMap<>();
        }
        if (command.equals("nameServer")) {
            return startNameServer(name, request.getIntValue("listenPort"));
        }
        if (command.equals("endNameServer")) {
            nameServers.remove(name).shutdown();
            return new LinkedHashMap<>();
        }
        if (CLIENT_COMMANDS.contains(command)) {
            return clients.perform(command, request);
        }
        if (command.startsWith("transaction")) {
            return transactions.perform(command, request);
        }
        if (command.startsWith("timed")) {
            return timedProducers.perform(command, request);
        }
        if (command.equals("ask")) {
            return ask(request.getString("address"));
        }
        Opened target = opened.get(name);
        if (target == null) {
            throw new IllegalStateException("no store named " + name + " is open");
        }
        switch (command) {
            case "put":
                return put(target, request);
            case "status":
                return status(target);
            case "wait":
                return waitFor(target, request);
            case "read":
                return readThroughQueues(target.store, request.getString("topic"));
            case "register":
                target.broker.registerBrokerAll(true, false, true);
                return new LinkedHashMap<>();
            case "syncMetadata":
                return syncMetadata(target.broker);
            case "shutdown":
                return shutdown(name, target);
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    // ---- opening and closing

    private Map<String, Object> start(String name, JSONObject settings, String haMasterAddress) throws Exception {
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        apply(settings, storeConfig, brokerConfig);
        DefaultMessageStore store = Rocket.open(storeConfig, brokerConfig);
        if (!store.load()) {
            throw new IllegalStateException("the store refused to load " + storeConfig.getStorePathRootDir());
        }
        Rocket.start(store, haMasterAddress);
        Opened fresh = new Opened(store, storeConfig, null);
        opened.put(name, fresh);
        Map<String, Object> result = status(fresh);
        result.put("haPort", Rocket.haPort(store, storeConfig));
        return result;
    }

    /** The second port for clients is two below, the HA port one above, as BrokerStartup has them: 4.9.7 takes no port 0. */
    private Map<String, Object> startBroker(String name, JSONObject settings, int port, String haMasterAddress)
        throws Exception {
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        NettyServerConfig serverConfig = new NettyServerConfig();
        Object users = Rocket.users();
        apply(settings, storeConfig, brokerConfig, users);
        serverConfig.setListenPort(port);
        storeConfig.setHaListenPort(port + 1);
        BrokerController broker =
            Rocket.broker(name, brokerConfig, serverConfig, new NettyClientConfig(), storeConfig, users);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker refused to initialize " + storeConfig.getStorePathRootDir());
        }
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        Rocket.startBroker(broker, store, haMasterAddress);
        Opened fresh = new Opened(store, storeConfig, broker);
        opened.put(name, fresh);
        Map<String, Object> result = status(fresh);
        result.put("listenPort", port);
        result.put("haPort", Rocket.haPort(store, storeConfig));
        return result;
    }

    private Map<String, Object> startNameServer(String folder, int port) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(folder + "/kvConfig.json");
        config.setConfigStorePath(folder + "/namesrv.properties");
        NettyServerConfig serverConfig = new NettyServerConfig();
        serverConfig.setListenPort(port);
        NamesrvController nameServer = new NamesrvController(config, serverConfig);
        if (!nameServer.initialize()) {
            throw new IllegalStateException("the name server refused to initialize");
        }
        nameServer.start();
        nameServers.put(folder, nameServer);
        return new LinkedHashMap<>();
    }

    /** The slave's own copy of its master's tables, now: 5.x begins it 63 s after its start. */
    private static Map<String, Object> syncMetadata(BrokerController slave) {
        String master = slave.getSlaveSynchronize().getMasterAddr();
        if (master != null) {
            slave.getSlaveSynchronize().syncAll();
        }
        return new LinkedHashMap<>(Map.of("hasMaster", master != null));
    }

    private Map<String, Object> shutdown(String name, Opened target) {
        opened.remove(name);
        if (target.broker != null) {
            target.broker.shutdown();
        } else {
            target.store.shutdown();
        }
        return new LinkedHashMap<>();
    }

    /** Sets each setting on every object that has it; a name that none of them has is an error, not a typo kept. */
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
        // An enum has a setter that takes its constant's name and may have one that takes a number: the JVM lists them in
        // any order, the name is meant.
        List<Method> setters = new ArrayList<>();
        for (Method method : config.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                setters.add(method.getParameterTypes()[0] == String.class ? 0 : setters.size(), method);
            }
        }
        for (Method method : setters) {
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

    // ---- writing

    /** Puts messages one after another, up to PUTS_IN_FLIGHT_MAX of them waiting for flush or slave at a time. */
    private Map<String, Object> put(Opened target, JSONObject request) throws Exception {
        int count = request.getIntValue("count");
        int sizeMin = request.getIntValue("sizeMin");
        int sizeMax = request.getIntValue("sizeMax");
        int queues = request.getIntValue("queues");
        int preparedEvery = request.getIntValue("preparedEvery");
        String topic = request.getString("topic");
        boolean waitStoreMsgOK = request.getBooleanValue("waitStoreMsgOK");
        boolean ipv6BornHosts = request.getBooleanValue("ipv6BornHosts");
        boolean untilNotOk = request.getBooleanValue("untilNotOk");
        Random random = new Random(request.getLongValue("seed"));
        InetSocketAddress storeHost = new InetSocketAddress("127.0.0.1", 10911);
        InetSocketAddress bornIpv4 = new InetSocketAddress("127.0.0.1", 50001);
        InetSocketAddress bornIpv6 = new InetSocketAddress("::1", 50002);

        Map<String, Integer> statuses = new TreeMap<>();
        AtomicLong end = new AtomicLong(-1);
        AtomicLong slowestNanos = new AtomicLong();
        AtomicBoolean allOk = new AtomicBoolean(true);
        Semaphore inFlight = new Semaphore(PUTS_IN_FLIGHT_MAX);
        List<CompletableFuture<?>> waiting = new ArrayList<>();
        for (int i = 0; i < count && (allOk.get() || !untilNotOk); i++) {
            byte[] body = new byte[sizeMin + random.nextInt(sizeMax - sizeMin + 1)];
            random.nextBytes(body);
            Map<String, String> properties = new TreeMap<>();
            if (i % 2 == 0) {
                properties.put("TAGS", "tag" + i % 3);
            }
            if (i % 5 == 0) {
                properties.put("KEYS", "key" + i + " clé" + i);
            }
            boolean prepared = preparedEvery > 0 && i % preparedEvery == 0;
            int sysFlag = prepared ? MessageSysFlag.TRANSACTION_PREPARED_TYPE : 0;
            InetSocketAddress born = ipv6BornHosts && i % 4 == 3 ? bornIpv6 : bornIpv4;
            inFlight.acquire();
            long began = System.nanoTime();
            CompletableFuture<PutMessageResult> put = Rocket.put(
                target.store, topic, i % queues, sysFlag, body, properties, born, storeHost, waitStoreMsgOK);
            waiting.add(put.whenComplete((result, problem) -> {
                inFlight.release();
                long took = System.nanoTime() - began;
                slowestNanos.accumulateAndGet(took, Math::max);
                if (result == null) {
                    return;
                }
                if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    allOk.set(false);
                }
                synchronized (statuses) {
                    statuses.merge(result.getPutMessageStatus().name(), 1, Integer::sum);
                }
                if (result.getAppendMessageResult() != null) {
                    long wrote = result.getAppendMessageResult().getWroteOffset();
                    end.accumulateAndGet(wrote + result.getAppendMessageResult().getWroteBytes(), Math::max);
                }
            }));
        }
        for (CompletableFuture<?> put : waiting) {
            put.get();
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("statuses", statuses);
        result.put("endOffset", end.get());
        result.put("slowestMillis", slowestNanos.get() / 1_000_000);
        return result;
    }

    // ---- as a client of any broker

    private synchronized MQClientAPIImpl client() {
        if (client == null) {
            client = new MQClientAPIImpl(
                new NettyClientConfig(), new ClientRemotingProcessor(null), null, new ClientConfig());
            client.start();
        }
        return client;
    }

    /** Sends messages one after the other as a producer does, and reports the answer to each. */
    private Map<String, Object> send(JSONObject request) throws Exception {
        List<Object> results = new ArrayList<>();
        Random random = new Random(request.getLongValue("seed"));
        for (int i = 0; i < request.getIntValue("count"); i++) {
            byte[] body = new byte[request.getIntValue("size")];
            random.nextBytes(body);
            Message message = new Message(request.getString("topic"), "tag" + i % 3, "key" + i, body);
            MessageClientIDSetter.setUniqID(message);
            SendResult result = Rocket.send(client(), request.getString("address"), message, i % 4);
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("sendStatus", result.getSendStatus().name());
            one.put("msgId", result.getMsgId());
            one.put("offsetMsgId", result.getOffsetMsgId());
            one.put("queueId", result.getMessageQueue().getQueueId());
            one.put("queueOffset", result.getQueueOffset());
            results.add(one);
        }
        return new LinkedHashMap<>(Map.of("results", results));
    }

    /** What the client's own classes make of a broker's runtime info and, from 5.x on, of its HA status. */
    private Map<String, Object> ask(String address) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("serializeType", RemotingCommand.getSerializeTypeConfigInThisServer().name());
        result.put("runtimeInfo", client().getBrokerRuntimeInfo(address, ANSWER_TIMEOUT_MS).getTable());
        result.put("haStatus", Rocket.haStatus(client(), address));
        return result;
    }

    // ---- looking

    private static Map<String, Object> status(Opened target) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("minOffset", target.store.getMinPhyOffset());
        result.put("maxOffset", target.store.getMaxPhyOffset());
        result.put("dispatchBehindBytes", target.store.dispatchBehindBytes());
        result.put("haConnections", target.store.getHaService().getConnectionCount().get());
        result.put("push2SlaveMaxOffset", target.store.getHaService().getPush2SlaveMaxOffset().get());
        return result;
    }

    /** Waits until every condition given holds; says in "reached" whether it came to that. */
    private static Map<String, Object> waitFor(Opened target, JSONObject request) throws Exception {
        long deadline = System.nanoTime() + request.getLongValue("millis") * 1_000_000;
        while (true) {
            Map<String, Object> now = status(target);
            boolean reached = holds(request, "maxOffset", (Long) now.get("maxOffset"))
                && holds(request, "push2SlaveMaxOffset", (Long) now.get("push2SlaveMaxOffset"))
                && (!request.getBooleanValue("dispatched") || (Long) now.get("dispatchBehindBytes") <= 0)
                && (!request.containsKey("haConnections")
                    || now.get("haConnections").equals(request.getInteger("haConnections")));
            if (reached || System.nanoTime() > deadline) {
                now.put("reached", reached);
                return now;
            }
            Thread.sleep(5);
        }
    }

    private static boolean holds(JSONObject request, String key, long now) {
        return !request.containsKey(key) || now >= request.getLongValue(key);
    }

    /** Every message of a topic as a consumer gets it: by consume queue, from its min to its max offset. */
    private static Map<String, Object> readThroughQueues(DefaultMessageStore store, String topic) throws Exception {
        Map<String, Object> bounds = new TreeMap<>();
        List<Object> messages = new ArrayList<>();
        Map<Integer, ?> table = store.getConsumeQueueTable().get(topic);
        if (table == null) {
            throw new IllegalStateException("no consume queue for topic " + topic);
        }
        for (Integer queueId : table.keySet()) {
            long min = store.getMinOffsetInQueue(topic, queueId);
            long max = store.getMaxOffsetInQueue(topic, queueId);
            bounds.put(String.valueOf(queueId), List.of(min, max));
            for (long offset = min; offset < max; ) {
                GetMessageResult found = store.getMessage(PULL_GROUP, topic, queueId, offset, 32, null);
                try {
                    if (found.getMessageMapedList().isEmpty()) {
                        throw new IllegalStateException(
                            topic + " queue " + queueId + " at " + offset + ": " + found.getStatus());
                    }
                    for (SelectMappedBufferResult one : found.getMessageMapedList()) {
                        messages.add(describe(one));
                    }
                    offset = found.getNextBeginOffset();
                } finally {
                    found.release();
                }
            }
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("queues", bounds);
        result.put("messages", messages);
        return result;
    }

    private static Map<String, Object> describe(SelectMappedBufferResult one) {
        MessageExt message = MessageDecoder.decode(one.getByteBuffer(), true, false);
        if (message == null) {
            throw new IllegalStateException("not a message at physical offset " + one.getStartOffset());
        }
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("physicalOffset", message.getCommitLogOffset());
        result.put("size", message.getStoreSize());
        result.put("topic", message.getTopic());
        result.put("queueId", message.getQueueId());
        result.put("queueOffset", message.getQueueOffset());
        result.put("msgId", message.getMsgId());
        result.put("flag", message.getFlag());
        result.put("sysFlag", message.getSysFlag());
        result.put("bodyCRC", message.getBodyCRC());
        result.put("bornTimestamp", message.getBornTimestamp());
        result.put("bornHost", describe((InetSocketAddress) message.getBornHost()));
        result.put("storeTimestamp", message.getStoreTimestamp());
        result.put("storeHost", describe((InetSocketAddress) message.getStoreHost()));
        result.put("reconsumeTimes", message.getReconsumeTimes());
        result.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        result.put("properties", message.getProperties());
        result.put("bodyBytes", body.length);
        result.put("bodyCrcAsRead", crc.getValue() & BODY_CRC_MASK);
        return result;
    }

    private static List<Object> describe(InetSocketAddress host) {
        return List.of(host.getAddress().getHostAddress(), host.getPort());
    }
}
