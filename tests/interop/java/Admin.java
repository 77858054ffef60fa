package interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin, one command at a time. */
final class Admin {
    /** What mqadmin prints. */
    synchronized String run(String[] arguments) throws Exception {
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
}
