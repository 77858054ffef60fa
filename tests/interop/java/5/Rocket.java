package interop;

import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.impl.CommunicationMode;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What is particular to RocketMQ 5.x. */
final class Rocket {
    private Rocket() {
    }

    static DefaultMessageStore open(MessageStoreConfig storeConfig, BrokerConfig brokerConfig) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false);
        return new DefaultMessageStore(
            storeConfig, stats, (topic, queue, offset, tags, time, bitmap, properties) -> { }, brokerConfig,
            new ConcurrentHashMap<>());
    }

    /** The HA client is made by start(), ignores the address in the config, and sleeps 5 s unless it is woken. */
    static void start(DefaultMessageStore store, String haMasterAddress) throws Exception {
        store.start();
        follow(store, haMasterAddress);
    }

    /** Settings of users and access control lists. */
    static Object users() {
        return new AuthConfig();
    }

    /** Users of one JVM are kept by configName: each broker has a name of its own. */
    static BrokerController broker(String name, BrokerConfig brokerConfig, NettyServerConfig serverConfig,
        NettyClientConfig clientConfig, MessageStoreConfig storeConfig, Object users) {
        brokerConfig.setListenPort(serverConfig.getListenPort());
        AuthConfig authConfig = (AuthConfig) users;
        if (authConfig.getAuthenticationMetadataProvider() == null
            || authConfig.getAuthenticationMetadataProvider().isEmpty()) {
            return new BrokerController(brokerConfig, serverConfig, clientConfig, storeConfig);
        }
        authConfig.setConfigName(name);
        authConfig.setClusterName(brokerConfig.getBrokerClusterName());
        authConfig.setAuthConfigPath(storeConfig.getStorePathRootDir() + "/config");
        return new BrokerController(brokerConfig, serverConfig, clientConfig, storeConfig, authConfig);
    }

    static void startBroker(BrokerController broker, DefaultMessageStore store, String haMasterAddress)
        throws Exception {
        broker.start();
        follow(store, haMasterAddress);
    }

    private static void follow(DefaultMessageStore store, String haMasterAddress) {
        if (haMasterAddress != null) {
            store.updateHaMasterAddress(haMasterAddress);
            store.getHaService().getHAClient().wakeup();
        }
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

    static Object haStatus(MQClientAPIImpl client, String address) throws Exception {
        return client.getBrokerHAStatus(address, StoreDriver.ANSWER_TIMEOUT_MS);
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

    /** LZ4, ZSTD or ZLIB for long bodies. */
    static void compress(DefaultMQProducer producer, String algorithm) {
        producer.setCompressType(CompressionType.of(algorithm));
    }

    /** The broker assigns its queues, and says whether they are pulled or popped. */
    static void rebalanceAtBroker(DefaultMQPushConsumer consumer) {
        consumer.setClientRebalance(false);
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** Port 0 is bound as the system likes and written back to the config. */
    static int haPort(DefaultMessageStore store, MessageStoreConfig config) {
        return config.getHaListenPort();
    }
}
