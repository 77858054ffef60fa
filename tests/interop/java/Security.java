package interop;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** The account, the TLS and the port of the clients that are made next. */
final class Security {
    private static RPCHook hook;
    private static boolean tls;
    private static boolean vip;

    private Security() {
    }

    /** An empty access key: requests are not signed. */
    static void use(JSONObject request) {
        String accessKey = request.getString("accessKey");
        hook = accessKey.isEmpty() ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, request.getString("secretKey")));
        tls = request.getBooleanValue("tls");
        vip = request.getBooleanValue("vip");
    }

    static RPCHook hook() {
        return hook;
    }

    static void apply(ClientConfig client) {
        client.setUseTLS(tls);
        // Sends of producers go to the broker's second port.
        client.setVipChannelEnabled(vip);
    }
}
