import com.sun.management.OperatingSystemMXBean;
import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Measures Netty's HashedWheelTimer as benchmarks/wheel measures the timers of Go, and prints the same lines.
 *
 * <pre>java NettyTimers [smoke]</pre>
 *
 * The wheel has the size that is Netty's default, 512 buckets, and ticks of 1 ms, as all wheels that are compared.
 * Processor time is that of the whole JVM: the callers, the worker, the garbage collector and the compiler.
 */
public final class NettyTimers {
    private static final OperatingSystemMXBean OS = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final TimerTask NOTHING = timeout -> {};
    private static final Random RANDOM = new Random();

    private static int divisor = 1;

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("smoke")) {
            divisor = 1000;
        }
        warmUp();
        fire("dense", size(1_000_000), true);
        fire("sparse", size(50_000), true);
        pending(1000);
        if (size(1_000_000) > 1000) {
            pending(size(1_000_000));
        }
        reschedule(size(1_000_000)); // after what measures the heap: its garbage would count there
        // Stopping a timer returns what is pending in a set, which takes longer than what is measured here: one timer
        // has more and more of them.
        HashedWheelTimer timer = newTimer();
        List<Timeout> others = new ArrayList<>();
        for (int pending : new int[] {0, size(10_000), size(100_000), size(1_000_000), size(10_000_000)}) {
            fill(timer, pending - others.size(), others);
            Thread.sleep(100 + pending / 20_000); // the worker places 100 000 in a tick
            for (int threads = 1; threads <= 2; threads++) {
                scheduleStop(timer, threads, others.size(), size(4_000_000), true);
            }
        }
        System.exit(others.isEmpty() ? 1 : 0);
    }

    /** Sizes are those of the Go benchmarks, and a thousandth of them in a smoke run. */
    private static int size(int n) {
        return n / divisor;
    }

    private static HashedWheelTimer newTimer() {
        return new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 512);
    }

    /** Runs the paths that are measured until the compiler has optimised them. */
    private static void warmUp() throws Exception {
        HashedWheelTimer timer = newTimer();
        for (int k = 0; k < 3; k++) {
            for (int threads = 1; threads <= 2; threads++) {
                scheduleStop(timer, threads, 0, size(4_000_000), false);
            }
        }
        timer.stop();
        fire("dense", size(500_000), false);
        fire("dense", size(500_000), false);
    }

    private static void fill(HashedWheelTimer timer, int n, List<Timeout> timeouts) {
        for (int k = 0; k < n; k++) {
            timeouts.add(timer.newTimeout(NOTHING, 3_600_000L + RANDOM.nextInt(3_600_000), TimeUnit.MILLISECONDS));
        }
    }

    private static void scheduleStop(HashedWheelTimer timer, int threads, int pending, int calls, boolean print)
            throws Exception {
        Thread[] callers = new Thread[threads];
        System.gc();
        long start = System.nanoTime();
        long cpu = OS.getProcessCpuTime();
        for (int t = 0; t < threads; t++) {
            callers[t] = new Thread(() -> {
                for (int k = 0; k < calls / threads; k++) {
                    timer.newTimeout(NOTHING, 30, TimeUnit.SECONDS).cancel();
                }
            });
            callers[t].start();
        }
        for (Thread t : callers) {
            t.join();
        }
        double took = System.nanoTime() - start;
        double used = OS.getProcessCpuTime() - cpu;
        if (print) {
            line("ScheduleStop/goroutines=" + threads + "/pending=" + pending,
                took / calls, "ns/call", used / calls, "cpu-ns/call");
        }
    }

    /** Has n timers fire over 2 s, a second after the first of them is scheduled at the earliest. */
    private static void fire(String load, int n, boolean print) throws Exception {
        HashedWheelTimer timer = newTimer();
        long window = TimeUnit.MILLISECONDS.toNanos(size(2000));
        long[] late = new long[n];
        CountDownLatch fired = new CountDownLatch(n);
        System.gc();
        long origin = System.nanoTime();
        long cpu = OS.getProcessCpuTime();
        for (int k = 0; k < n; k++) {
            int index = k;
            long due = window / 2 + (long) (RANDOM.nextDouble() * window);
            timer.newTimeout(timeout -> {
                late[index] = System.nanoTime() - origin - due;
                fired.countDown();
            }, due - (System.nanoTime() - origin), TimeUnit.NANOSECONDS);
        }
        fired.await();
        double used = OS.getProcessCpuTime() - cpu;
        timer.stop();
        if (!print) {
            return;
        }
        Arrays.sort(late);
        double[] percents = {10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99};
        Object[] figures = new Object[2 * percents.length + 6];
        for (int i = 0; i < percents.length; i++) {
            figures[2 * i] = late[(int) (percents[i] / 100 * (n - 1))] / 1e6;
            figures[2 * i + 1] = "p" + String.valueOf(percents[i]).replaceAll("\\.0$", "") + "-late-ms";
        }
        int i = 2 * percents.length;
        figures[i] = late[n - 1] / 1e6;
        figures[i + 1] = "max-late-ms";
        figures[i + 2] = Math.max(0, -late[0] / 1e6);
        figures[i + 3] = "early-ms";
        figures[i + 4] = used / n;
        figures[i + 5] = "cpu-ns/timer";
        line("Fire/load=" + load + "/timers=" + n, figures);
    }

    /** Moves the deadlines of n timers, in no order: as there is no call for it, each is cancelled and a new one made. */
    private static void reschedule(int n) throws Exception {
        HashedWheelTimer timer = newTimer();
        List<Timeout> handles = new ArrayList<>(n);
        for (int k = 0; k < n; k++) {
            handles.add(timer.newTimeout(NOTHING, 10_000 + k % 8192, TimeUnit.MILLISECONDS));
        }
        Collections.shuffle(handles, RANDOM);
        System.gc();
        long start = System.nanoTime();
        long cpu = OS.getProcessCpuTime();
        for (int k = 0; k < n; k++) {
            handles.get(k).cancel();
            handles.set(k, timer.newTimeout(NOTHING, 30, TimeUnit.SECONDS));
        }
        double took = System.nanoTime() - start;
        double used = OS.getProcessCpuTime() - cpu;
        line("Reschedule", took / n, "ns/call", used / n, "cpu-ns/call");
        timer.stop();
    }

    /** Measures what n timers cost while they wait: memory, processor time. */
    private static void pending(int n) throws Exception {
        HashedWheelTimer timer = newTimer();
        timer.start();
        Thread.sleep(100);
        long before = heap();
        List<Timeout> handles = new ArrayList<>(n);
        before += 4L * n; // of the handles, which the caller keeps and the benchmarks of Go do not count either
        fill(timer, n, handles);
        Thread.sleep(size(1000)); // what scheduling left to be done is not waiting
        double each = (double) (heap() - before) / n;
        Thread.sleep(200);
        long start = System.nanoTime();
        double cpu = OS.getProcessCpuTime();
        Thread.sleep(size(3000));
        cpu = OS.getProcessCpuTime() - cpu;
        double seconds = (System.nanoTime() - start) / 1e9;
        line("Pending/pending=" + n, each, "B/timer", cpu / 1e6 / seconds, "cpu-ms/s");
        timer.stop();
        if (handles.size() != n) {
            throw new IllegalStateException(); // the handles are needed until here
        }
    }

    private static long heap() {
        System.gc();
        System.gc();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    private static void line(String name, Object... figures) {
        StringBuilder text = new StringBuilder("Benchmark" + name + "/impl=Netty 1");
        for (int i = 0; i < figures.length; i += 2) {
            text.append(String.format(Locale.ROOT, "\t%.6g %s", figures[i], figures[i + 1]));
        }
        System.out.println(text);
    }
}
