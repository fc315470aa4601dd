package org.apache.qpid.server.queue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.qpid.server.bytebuffer.QpidByteBuffer;
import org.apache.qpid.server.message.AMQMessageHeader;
import org.apache.qpid.server.message.MessageReference;
import org.apache.qpid.server.message.ServerMessage;
import org.apache.qpid.server.store.MessageDurability;
import org.apache.qpid.server.store.StorableMessageMetaData;
import org.apache.qpid.server.store.StoredMessage;
import org.apache.qpid.server.store.TransactionLogResource;

/**
 * Puts, gets and acks on Qpid's own {@link StandardQueueEntryList}, without a broker.
 *
 * <p>The list, its entries, their states and its statistics are Qpid's. Not Qpid's are the queue that the list belongs
 * to (a proxy that answers the three questions which the list asks), the messages (an object with one reference), and
 * the pointer of a subscription with the loop that moves it, which in Qpid are part of its queue and need a broker. The
 * class is in Qpid's package because the list's statistics are.
 *
 * <p>It stays up and runs one measurement per input line, {@code THREADS ENTRIES}: that many putters and as many
 * subscriptions, or with 0 one thread that does both. The answer is nanoseconds per entry: of processor time with one
 * thread, else of the time from the moment all threads were let go until the last subscription had its share.
 */
public final class ListDriver {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private ListDriver() {}

    public static void main(String[] args) throws IOException, InterruptedException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            int threads = Integer.parseInt(words[0]);
            long entries = Long.parseLong(words[1]);
            System.out.println(threads == 0 ? alone(entries) : together(threads, entries));
            System.gc(); // what this run left behind is not the next one's cost
        }
    }

    private static double alone(long entries) {
        QueueEntryList list = newList();
        Subscription subscription = new Subscription(list);
        long began = THREADS.getCurrentThreadCpuTime();
        for (long i = 0; i < entries; i++) {
            list.add(new Message(), null);
            subscription.take().delete();
        }
        return (THREADS.getCurrentThreadCpuTime() - began) / (double) entries;
    }

    private static double together(int pairs, long entries) throws InterruptedException {
        QueueEntryList list = newList();
        long share = Math.max(1, entries / pairs);
        CountDownLatch ready = new CountDownLatch(2 * pairs);
        CountDownLatch go = new CountDownLatch(1);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < pairs; i++) {
            threads.add(new Thread(() -> {
                await(ready, go);
                for (long n = 0; n < share; n++) {
                    list.add(new Message(), null);
                }
            }));
            threads.add(new Thread(() -> {
                Subscription subscription = new Subscription(list);
                await(ready, go);
                for (long n = 0; n < share; n++) {
                    QueueEntry entry = subscription.take();
                    while (entry == null) {
                        Thread.yield();
                        entry = subscription.take();
                    }
                    entry.delete();
                }
            }));
        }
        threads.forEach(Thread::start);
        ready.await();
        long began = System.nanoTime();
        go.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        return (System.nanoTime() - began) / (double) (share * pairs);
    }

    private static void await(CountDownLatch ready, CountDownLatch go) {
        ready.countDown();
        try {
            go.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException("interrupted while the threads started", e);
        }
    }

    private static QueueEntryList newList() {
        StandardQueue<?> queue = (StandardQueue<?>) Proxy.newProxyInstance(
            ListDriver.class.getClassLoader(), new Class<?>[] {StandardQueue.class}, (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "getContextValue":
                        return 100; // deletions in the middle before a walk that unlinks them: Qpid's default
                    case "getMessageDurability":
                        return MessageDurability.NEVER;
                    case "checkCapacity":
                        return null;
                    default:
                        throw new UnsupportedOperationException(method.getName());
                }
            });
        return new StandardQueueEntryList(queue, new QueueStatistics());
    }

    /** A pointer into the list: it moves past what is acquired or gone, by compare-and-swap. */
    private static final class Subscription {
        private final QueueEntryList list;
        private final AtomicReference<QueueEntry> seen;

        Subscription(QueueEntryList list) {
            this.list = list;
            this.seen = new AtomicReference<>(list.getHead());
        }

        /** The next entry, acquired, or null. */
        QueueEntry take() {
            while (true) {
                QueueEntry last = seen.get();
                QueueEntry next = list.next(last);
                if (next == null) {
                    return null;
                }
                if (next.isAvailable() && next.acquire()) {
                    seen.set(next);
                    return next;
                }
                seen.compareAndSet(last, next);
            }
        }
    }

    /** A message with one reference: itself. */
    private static final class Message
            implements ServerMessage<StorableMessageMetaData>, MessageReference<ServerMessage<StorableMessageMetaData>> {
        @Override public ServerMessage<StorableMessageMetaData> getMessage() { return this; }
        @Override public void release() {}
        @Override public void close() {}
        @Override public MessageReference<?> newReference() { return this; }
        @Override public MessageReference<?> newReference(TransactionLogResource owner) { return this; }
        @Override public boolean isReferenced(TransactionLogResource owner) { return false; }
        @Override public boolean isReferenced() { return true; }
        @Override public boolean isPersistent() { return false; }
        @Override public long getSize() { return 1; }
        @Override public long getSizeIncludingHeader() { return 1; }
        @Override public long getExpiration() { return 0; }
        @Override public long getArrivalTime() { return 0; }
        @Override public long getMessageNumber() { return 0; }
        @Override public boolean isResourceAcceptable(TransactionLogResource resource) { return true; }
        @Override public boolean checkValid() { return true; }
        @Override public ValidationStatus getValidationStatus() { return ValidationStatus.VALID; }
        @Override public String getMessageType() { return "bench"; }
        @Override public String getInitialRoutingAddress() { return ""; }
        @Override public String getTo() { return ""; }
        @Override public AMQMessageHeader getMessageHeader() { return null; }
        @Override public StoredMessage<StorableMessageMetaData> getStoredMessage() { return null; }
        @Override public Object getConnectionReference() { return null; }
        @Override public QpidByteBuffer getContent() { return null; }
        @Override public QpidByteBuffer getContent(int offset, int length) { return null; }
    }
}
