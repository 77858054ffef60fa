package interop;

import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.impl.CommunicationMode;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What is particular to RocketMQ 4.9. */
final class Rocket {
    private Rocket() {
    }

    static DefaultMessageStore open(MessageStoreConfig storeConfig, BrokerConfig brokerConfig) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false);
        return new DefaultMessageStore(
            storeConfig, stats, (topic, queue, offset, tags, time, bitmap, properties) -> { }, brokerConfig);
    }

    /** The HA client exists from the constructor on and sleeps 5 s when it finds no address: set it first. */
    static void start(DefaultMessageStore store, String haMasterAddress) throws Exception {
        if (haMasterAddress != null) {
            store.updateHaMasterAddress(haMasterAddress);
        }
        store.start();
    }

    /** 4.9 has no settings of users; the plain object has no setters. */
    static Object users() {
        return new Object();
    }

    static BrokerController broker(String name, BrokerConfig brokerConfig, NettyServerConfig serverConfig,
        NettyClientConfig clientConfig, MessageStoreConfig storeConfig, Object users) {
        return new BrokerController(brokerConfig, serverConfig, clientConfig, storeConfig);
    }

    static void startBroker(BrokerController broker, DefaultMessageStore store, String haMasterAddress)
        throws Exception {
        if (haMasterAddress != null) {
            store.updateHaMasterAddress(haMasterAddress);
        }
        broker.start();
    }

    static CompletableFuture<PutMessageResult> put(DefaultMessageStore store, String topic, int queueId, int sysFlag,
        byte[] body, Map<String, String> properties, InetSocketAddress bornHost, InetSocketAddress storeHost,
        boolean waitStoreMsgOK) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setSysFlag(sysFlag);
        message.setBody(body);
        MessageAccessor.setProperties(message, properties);
        message.setWaitStoreMsgOK(waitStoreMsgOK);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(bornHost);
        message.setStoreHost(storeHost);
        return store.asyncPutMessage(message);
    }

    /** 4.9 has no such request. */
    static Object haStatus(MQClientAPIImpl client, String address) {
        return null;
    }

    static SendResult send(MQClientAPIImpl client, String address, Message message, int queueId) throws Exception {
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("interop");
        header.setTopic(message.getTopic());
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(queueId);
        header.setSysFlag(0);
        header.setBornTimestamp(System.currentTimeMillis());
        header.setFlag(message.getFlag());
        header.setProperties(MessageDecoder.messageProperties2String(message.getProperties()));
        header.setReconsumeTimes(0);
        return client.sendMessage(
            address, "interop", message, header, StoreDriver.ANSWER_TIMEOUT_MS, CommunicationMode.SYNC, new SendMessageContext(), null);
    }

    /** 4.9 has a system property for the whole JVM and no setter. */
    static void compress(DefaultMQProducer producer, String algorithm) {
        throw new UnsupportedOperationException("a 4.9 producer has no setCompressType");
    }

    /** The broker assigns its queues, and says whether they are pulled or popped. */
    static void rebalanceAtBroker(DefaultMQPushConsumer consumer) {
        throw new UnsupportedOperationException("4.9 has no POP");
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** Port 0 is bound as the system likes, and kept to itself: it is read off the listening socket. */
    static int haPort(DefaultMessageStore store, MessageStoreConfig config) throws Exception {
        Object accept = read(store.getHaService(), "acceptSocketService");
        ServerSocketChannel listening = (ServerSocketChannel) read(accept, "serverSocketChannel");
        return listening.socket().getLocalPort();
    }

    private static Object read(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}
