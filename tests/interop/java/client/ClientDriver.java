package interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's own clients and mqadmin, for the interop tests: one command a line on stdin, fields split by tabs; one
 * answer a line on stdout, "ok" or "error", a tab, and the text in base64.
 */
public final class ClientDriver {
    private ClientDriver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] fields = line.split("\t", -1);
            String outcome = "ok";
            String text;
            try {
                text = carryOut(fields[0], Arrays.copyOfRange(fields, 1, fields.length));
            } catch (Throwable problem) {
                outcome = "error";
                StringWriter trace = new StringWriter();
                problem.printStackTrace(new PrintWriter(trace));
                text = trace.toString();
            }
            byte[] encoded = Base64.getEncoder().encode(text.getBytes(StandardCharsets.UTF_8));
            answers.println(outcome + "\t" + new String(encoded, StandardCharsets.US_ASCII));
            answers.flush();
        }
        System.exit(0);
    }

    private static String carryOut(String command, String[] arguments) throws Exception {
        switch (command) {
            case "mqadmin":
                return mqadmin(arguments);
            case "send":
                return send(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
            case "consume":
                return consume(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
            case "join":
                return LiveClients.join(arguments[0], arguments[1], arguments[2]);
            case "received":
                return LiveClients.received();
            case "leave":
                return LiveClients.leave();
            case "security":
                return Security.use(arguments[0], arguments[1], Boolean.parseBoolean(arguments[2]),
                    Boolean.parseBoolean(arguments[3]));
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    /** What mqadmin prints. */
    private static String mqadmin(String[] arguments) throws Exception {
        PrintStream before = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        // As in a new process: a command may keep what it has shut down, as brokerConsumeStats does.
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
        Thread waker = waker(Thread.getAllStackTraces().keySet());
        try {
            MQAdminStartup.main0(arguments, null);
        } finally {
            waker.interrupt();
            waker.join();
            System.out.flush();
            System.setOut(before);
        }
        return printed.toString("UTF-8");
    }

    /** Ends the waits of a command that shuts its client down: 5.x waits up to 3 s for a thread that waits for events. */
    private static Thread waker(Set<Thread> others) {
        Thread waker = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(100);
                    for (Thread thread : Thread.getAllStackTraces().keySet()) {
                        if (thread.getName().startsWith("NettyEventExecutor") && !others.contains(thread)) {
                            thread.interrupt();
                        }
                    }
                }
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }, "waker");
        waker.setDaemon(true);
        waker.start();
        return waker;
    }

    /** Sends messages one by one: a line for each with its status, broker and queue. */
    private static String send(String nameServers, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-" + System.nanoTime(), Security.hook());
        producer.setUseTLS(Security.tls());
        producer.setVipChannelEnabled(Security.vip());
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(String.valueOf(System.nanoTime()));
        producer.setSendMsgTimeout(30000);
        producer.start();
        try {
            StringBuilder lines = new StringBuilder();
            for (int number = 0; number < count; number++) {
                SendResult result = producer.send(
                    new Message(topic, "tag", "key-" + number, ("body-" + number).getBytes(StandardCharsets.UTF_8)));
                lines.append(result.getSendStatus()).append('\t')
                    .append(result.getMessageQueue().getBrokerName()).append('\t')
                    .append(result.getMessageQueue().getQueueId()).append('\n');
            }
            return lines.toString();
        } finally {
            producer.shutdown();
        }
    }

    /** Consumes from the start of a topic until so many messages have come: a line for each with its body. */
    private static String consume(String nameServers, String topic, int count) throws Exception {
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        CountDownLatch expected = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("interop-" + System.nanoTime(),
            Security.hook(), new AllocateMessageQueueAveragely());
        consumer.setUseTLS(Security.tls());
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(String.valueOf(System.nanoTime()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                expected.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            expected.await(60, TimeUnit.SECONDS);
            return String.join("\n", bodies);
        } finally {
            consumer.shutdown();
        }
    }
}
