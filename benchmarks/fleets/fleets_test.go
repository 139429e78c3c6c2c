// Package fleets measures what a lock, a permit and a delayed task cost when many processes want the same name, on one
// redis-server on loopback. Each process of a fleet is a process of the operating system.
package fleets_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// BENCH=full makes rounds long enough for figures; otherwise they show that the benchmark runs.
var full = os.Getenv("BENCH") == "full"

// windowLimit, if it is set, shortens the times in which figures are measured. The results say so.
const windowLimit = "FLEETS_BENCH_WINDOW"

func TestMain(m *testing.M) {
	if text := os.Getenv(childLoad); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(windowLimit); full && text != "" {
		fmt.Println("fleets-window: " + text)
	}
	redistest.Main(m)
}

const (
	permits = 5 // of each semaphore
	name    = "hot"
)

// The numbers of processes, how long a lock or permit is held, and how many tasks become due in a second.
var (
	fleetSizes = some(2, 1, 4, 16, 64, 256)
	holds      = some(1, 2*time.Millisecond, 100*time.Millisecond)
	rates      = some(1, 500, 20, 2)
)

// some returns all values for a full run, and otherwise the first n.
func some[T any](n int, all ...T) []T {
	if full {
		return all
	}
	return all[:n]
}

// load is what each process of a fleet does.
type load struct {
	Work string        // of works, or "tasks"
	Impl string        // who does it
	Hold time.Duration // of a lock or permit
	Rate int           // tasks that become due in a second, for the whole fleet
}

// handOver is about how long the next holder takes to begin.
const handOver = 1500 * time.Microsecond

// turn is about how long it takes until each of n processes has held the lock or a permit once.
func (l load) turn(n int) time.Duration {
	at := 1
	if works[l.Work].permits {
		at = permits
	}
	return time.Duration(n) * (l.Hold + handOver) / time.Duration(at)
}

// longTurn is the longest turn that is worth waiting for: where a turn takes longer, no waits are reported.
const longTurn = 8 * time.Second

// times returns how long n processes work before the measurement begins, and how long that lasts.
func (l load) times(n int) (warmUp, window time.Duration) {
	turn := l.turn(n)
	switch {
	case !full && l.Impl == "asynq": // whose tasks are due at whole seconds
		return 50 * time.Millisecond, 1100 * time.Millisecond
	case !full && l.Work == "tasks":
		return 50 * time.Millisecond, 250 * time.Millisecond
	case !full:
		return 50 * time.Millisecond, 150 * time.Millisecond
	case l.Impl == "asynq": // which checks every five seconds
		return asynqCheck + asynqCheck/10, asynqCheck
	case l.Work == "tasks":
		warmUp, window = time.Second, map[int]time.Duration{2: 6 * time.Second, 20: 3 * time.Second, 500: 2 * time.Second}[l.Rate]
	case turn > longTurn:
		warmUp, window = time.Second, 6*time.Second
	default:
		// Processes that start together share the cores: their first turns take twice as long.
		warmUp, window = max(500*time.Millisecond, time.Duration(n)*4*time.Millisecond, turn), max(2*time.Second, turn)
	}
	if d, err := time.ParseDuration(os.Getenv(windowLimit)); err == nil {
		window = min(window, d)
	}
	return warmUp, window
}

// BenchmarkSections has each process take a lock or permit, hold it, and give it back, all the time.
func BenchmarkSections(b *testing.B) {
	for _, work := range []string{"mutex", "rwmutex", "fairmutex", "semaphore", "counting", "fairsemaphore"} {
		for _, hold := range holds {
			for _, n := range fleetSizes {
				for _, impl := range works[work].impls {
					l := load{Work: work, Impl: impl, Hold: hold}
					b.Run(fmt.Sprintf("work=%s/hold=%v/processes=%d/impl=%s", work, hold, n, impl), func(b *testing.B) {
						f := measure(b, l, n)
						b.ReportMetric(f.perSecond(), "ops/s")
						b.ReportMetric(f.perOp(f.calls), "calls/op")
						b.ReportMetric(f.perOp(f.serverMicros), "server-us/op")
						if l.turn(n) <= longTurn {
							f.reportTimes(b, "wait")
							b.ReportMetric(fairness(f.counts), "fairness")
						}
					})
				}
			}
		}
	}
}

// BenchmarkTasks has each process serve one queue with one worker, and tasks become due at even intervals.
func BenchmarkTasks(b *testing.B) {
	for _, rate := range rates {
		for _, n := range fleetSizes {
			for _, impl := range []string{"cogwheel", "asynq"} {
				l := load{Work: "tasks", Impl: impl, Rate: rate}
				b.Run(fmt.Sprintf("rate=%d/processes=%d/impl=%s", rate, n, impl), func(b *testing.B) {
					f := measure(b, l, n)
					b.ReportMetric(f.perSecond(), "ops/s")
					b.ReportMetric(f.perOp(f.calls), "calls/op")
					b.ReportMetric(f.perOp(f.serverMicros), "server-us/op")
					f.reportTimes(b, "late")
				})
			}
		}
	}
}

// measured is what a fleet did while it was measured.
type measured struct {
	window              time.Duration
	counts              []float64       // operations of each process
	times               []time.Duration // of each operation how long it waited, or how late it began; sorted
	waiting             time.Duration   // the longest wait so far that has not ended
	calls, serverMicros float64
}

func (f measured) perSecond() float64      { return float64(len(f.times)) / f.window.Seconds() }
func (f measured) perOp(v float64) float64 { return v / float64(max(1, len(f.times))) }

// reportTimes reports quantiles of the waits that have ended, and the longest of all waits.
func (f measured) reportTimes(b *testing.B, what string) {
	b.Helper()
	if len(f.times) == 0 {
		return
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(quantile(f.times, 50)), "p50-"+what+"-ms")
	b.ReportMetric(ms(quantile(f.times, 99)), "p99-"+what+"-ms")
	b.ReportMetric(ms(max(f.waiting, quantile(f.times, 100))), "max-"+what+"-ms")
}

func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)-1)*percent/100]
}

// fairness is Jain's index: 1 if all counts are equal, 1/n if one of n has everything.
func fairness(counts []float64) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += c
		squares += c * c
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// measure has n processes work, for each iteration of b with a server of their own, and returns the last iteration.
func measure(b *testing.B, l load, n int) (f measured) {
	b.Helper()
	for b.Loop() {
		f = measureOnce(b, l, n)
	}
	return f
}

func measureOnce(b *testing.B, l load, n int) measured {
	b.Helper()
	server := redistest.Start(b)
	defer server.Kill()
	rdb := server.Client(b, func(o *redis.Options) { o.PoolSize = 64 })
	if err := prepare(b.Context(), l, rdb); err != nil {
		b.Fatal(err)
	}
	fleet := startFleet(b, l, server.Addr(), n)
	defer fleet.kill()
	warmUp, window := l.times(n)
	from := time.Now().Add(warmUp)
	if l.Work == "tasks" {
		lead := taskLead(l, warmUp+window)
		from = from.Add(lead)
		scheduleAll(b, l, rdb, from.Add(-warmUp), warmUp+window)
	}
	fleet.begin(b, from, from.Add(window))
	time.Sleep(time.Until(from))
	calls, seconds := callsOf(b, l, rdb), redistest.ProcessorTime(b, rdb)
	time.Sleep(time.Until(from.Add(window)))
	f := measured{
		window: window, calls: callsOf(b, l, rdb) - calls, serverMicros: (redistest.ProcessorTime(b, rdb) - seconds) * 1e6,
	}
	for _, r := range fleet.results(b) {
		f.counts = append(f.counts, float64(len(r.Times)))
		f.times = append(f.times, r.Times...)
		f.waiting = max(f.waiting, r.Waiting)
	}
	slices.Sort(f.times)
	if full && len(f.times) == 0 {
		b.Fatal("no operation began")
	}
	return f
}

var (
	scriptCalls = regexp.MustCompile(`(?m)^cmdstat_(?:eval|evalsha|eval_ro|evalsha_ro|fcall):calls=(\d+)`)
	setCalls    = regexp.MustCompile(`(?m)^cmdstat_set:calls=(\d+)`)
)

// callsOf returns how many scripts were called, and for redsync, which takes a lock without a script, how many SETs.
func callsOf(tb testing.TB, l load, rdb *redis.Client) (n float64) {
	tb.Helper()
	stats, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	found := scriptCalls.FindAllStringSubmatch(stats, -1)
	if l.Impl == "redsync" {
		found = append(found, setCalls.FindAllStringSubmatch(stats, -1)...)
	}
	for _, m := range found {
		v, _ := strconv.ParseFloat(m[1], 64)
		n += v
	}
	return n
}
