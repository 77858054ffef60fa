package interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The account, the TLS and the port of the clients that are made next. */
final class Security {
    private static RPCHook hook;
    private static boolean tls;
    private static boolean vip;

    private Security() {
    }

    /** An empty access key: requests are not signed. */
    static String use(String accessKey, String secretKey, boolean useTls, boolean useVip) {
        hook = accessKey.isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
        tls = useTls;
        vip = useVip;
        return "";
    }

    static RPCHook hook() {
        return hook;
    }

    static boolean tls() {
        return tls;
    }

    /** Whether sends go to the broker's second port. */
    static boolean vip() {
        return vip;
    }
}
