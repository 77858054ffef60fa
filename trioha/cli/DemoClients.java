import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and an orderly push consumer for `trioha demo`, run as a source file: NAMESERVER TOPIC GROUP RATE.
 *
 * <p>The name server has the topic. Sends numbered messages one after the other, RATE a second, until the line "stop" on stdin, and receives them
 * until "end". Prints a line for each event: "sent NUMBER STATUS QUEUE OFFSET", "failed NUMBER" (it may be stored),
 * "received NUMBER QUEUE OFFSET", "stopped". The end of stdin without "end" halts the JVM.
 */
public final class DemoClients {
    private static volatile boolean stopping;

    private DemoClients() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream events = System.out;
        System.setOut(System.err);
        String nameServer = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        double rate = Double.parseDouble(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        Thread work = new Thread(() -> {
            try {
                startProducer(producer, nameServer);
                startConsumer(events, consumer, nameServer, topic);
                long startNanos = System.nanoTime();
                for (long number = 0; !stopping; number++) {
                    long dueNanos = startNanos + (long) (number / rate * 1e9);
                    TimeUnit.NANOSECONDS.sleep(dueNanos - System.nanoTime());
                    send(events, producer, topic, number);
                }
                print(events, "stopped");
            } catch (Throwable problem) {
                problem.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        work.setDaemon(true);
        work.start();

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.equals("stop")) {
                stopping = true;
            } else if (line.equals("end")) {
                work.join();
                consumer.shutdown();
                producer.shutdown();
                System.exit(0);
            }
        }
        Runtime.getRuntime().halt(1);
    }

    private static void startProducer(DefaultMQProducer producer, String nameServer) throws MQClientException {
        producer.setNamesrvAddr(nameServer);
        // Each message is sent once: an answer is the only word about it.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    private static void startConsumer(
        PrintStream events, DefaultMQPushConsumer consumer, String nameServer, String topic) throws Exception {
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                print(events, "received " + body + " " + message.getQueueId() + " " + message.getQueueOffset());
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
    }

    private static void send(PrintStream events, DefaultMQProducer producer, String topic, long number)
        throws InterruptedException {
        Message message = new Message(topic, Long.toString(number).getBytes(StandardCharsets.UTF_8));
        try {
            SendResult result = producer.send(message);
            print(events, "sent " + number + " " + result.getSendStatus() + " "
                + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
        } catch (InterruptedException interrupted) {
            throw interrupted;
        } catch (Exception problem) {
            problem.printStackTrace();
            print(events, "failed " + number);
        }
    }

    private static void print(PrintStream events, String line) {
        synchronized (events) {
            events.println(line);
            events.flush();
        }
    }
}
