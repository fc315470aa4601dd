package manytail.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

import lbmq.LinkedBlockingMultiQueue;

/**
 * Many writers on a few bounded sub-queues, one reader: the workload of the original's own benchmark.
 *
 * <p>It stays up and runs one measurement per input line, so that the caller can alternate it with a rival and the
 * JIT is warm after the first. A line is {@code MODE QUEUES WRITERS CAPACITY ITEMS}: WRITERS threads on each of
 * QUEUES sub-queues, CAPACITY split evenly over them. MODE "take" reads one item per call, "drain" up to 1,000.
 * The answer is {@code ITEMS NANOSECONDS}: what the reader took, and the time from the moment all threads were let
 * go, already started, until it had it. Writers put one shared object and never stop by themselves.
 */
public final class Driver {
    private static final int DRAIN = 1_000;

    private Driver() {}

    public static void main(String[] args) throws IOException, InterruptedException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            Run run = new Run(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            System.out.println(run.measure(words[0].equals("drain"), Long.parseLong(words[4])));
            System.gc(); // what this run left behind is not the next one's cost
        }
    }

    /** One queue with its writers; used once. */
    private static final class Run {
        private final LinkedBlockingMultiQueue<Integer, Object> multi = new LinkedBlockingMultiQueue<>();
        private final CountDownLatch go = new CountDownLatch(1);
        private final List<Thread> writers = new ArrayList<>();

        Run(int queues, int perQueue, int capacity) {
            CountDownLatch ready = new CountDownLatch(queues * perQueue);
            for (int key = 0; key < queues; key++) {
                multi.addSubQueue(key, 1, capacity / queues);
                LinkedBlockingMultiQueue<Integer, Object>.SubQueue tail = multi.getSubQueue(key);
                for (int i = 0; i < perQueue; i++) {
                    writers.add(new Thread(() -> write(tail, ready)));
                }
            }
            writers.forEach(Thread::start);
            awaitQuietly(ready);
        }

        String measure(boolean drain, long items) throws InterruptedException {
            long start = System.nanoTime();
            go.countDown();
            long taken = drain ? drain(items) : take(items);
            long elapsed = System.nanoTime() - start;
            for (Thread writer : writers) {
                writer.interrupt();
            }
            for (Thread writer : writers) {
                writer.join();
            }
            return taken + " " + elapsed;
        }

        private long take(long items) throws InterruptedException {
            for (long i = 0; i < items; i++) {
                multi.take();
            }
            return items;
        }

        /** Blocks for the first item of each batch, then takes what is there, as get_many does. */
        private long drain(long items) throws InterruptedException {
            List<Object> batch = new ArrayList<>(DRAIN);
            long taken = 0;
            while (taken < items) {
                multi.take();
                taken += 1 + multi.drainTo(batch, DRAIN - 1);
                batch.clear();
            }
            return taken;
        }

        private void write(LinkedBlockingMultiQueue<Integer, Object>.SubQueue tail, CountDownLatch ready) {
            Object item = new Object();
            ready.countDown();
            try {
                go.await();
                while (true) {
                    tail.put(item);
                }
            } catch (InterruptedException end) {
                // The reader has all it wanted: this is how a run ends.
                Thread.currentThread().interrupt();
            }
        }

        private static void awaitQuietly(CountDownLatch latch) {
            try {
                latch.await();
            } catch (InterruptedException e) {
                throw new IllegalStateException("interrupted while the writers started", e);
            }
        }
    }
}
