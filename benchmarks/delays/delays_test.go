// Package delays compares delay with asynq on one redis-server on loopback. Processes of their own run the tasks.
package delays_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// BENCH=full makes rounds long enough for figures; otherwise they show that the benchmark runs.
var full = os.Getenv("BENCH") == "full"

func TestMain(m *testing.M) {
	if impl := os.Getenv(childImpl); impl != "" {
		if err := runChild(impl); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	redistest.Main(m)
}

const (
	workers = 64 // of all processes
	prefix  = "order-"
	lease   = 30 * time.Second
)

func id(i int) string { return fmt.Sprintf("%s%07d", prefix, i) }

var payload = []byte(`{"customer": 1234567, "cents": 990}`)

// size is n in a full run and a thousandth of it otherwise.
func size(n int) int {
	if full {
		return n
	}
	return n / 1000
}

// fast are the implementations that do not need seconds for one task.
var fast = []string{"cogwheel", "asynq-fast"}

// bench has a server, what schedules, and the processes that serve.
type bench struct {
	*fleet
	impl
	rdb *redis.Client
}

func open(b *testing.B, name string, processes int, lease time.Duration, env ...string) bench {
	b.Helper()
	server := redistest.Start(b)
	rdb := server.Client(b, func(o *redis.Options) { o.PoolSize = 64 })
	p, err := newImpl(name, rdb, lease)
	if err != nil {
		b.Fatal(err)
	}
	if p.close != nil {
		b.Cleanup(func() {
			if err := p.close(); err != nil {
				b.Error(err)
			}
		})
	}
	f := startFleet(b, name, server.Addr(), processes, lease, env...)
	return bench{f, p, server.Client(b)}
}

// scheduleAll schedules n tasks from 64 goroutines.
func (x bench) scheduleAll(b *testing.B, n int, due func(i int) time.Time) {
	b.Helper()
	var last atomic.Int64
	var failure atomic.Pointer[error]
	var running sync.WaitGroup
	for range 64 {
		running.Go(func() {
			for {
				i := int(last.Add(1)) - 1
				if i >= n || failure.Load() != nil {
					return
				}
				if err := x.schedule(b.Context(), id(i), due(i), payload); err != nil {
					failure.Store(&err)
				}
			}
		})
	}
	running.Wait()
	if err := failure.Load(); err != nil {
		b.Fatal(*err)
	}
}

// lead is how long before the first of n tasks is due the benchmark begins to schedule them.
func lead(n int) time.Duration {
	if !full {
		return 200 * time.Millisecond
	}
	return time.Second + time.Duration(n)*150*time.Microsecond
}

// run schedules n tasks and returns how late each began. It fails if one was due before all were scheduled, in a full
// run. One that has not begun 10 s after the last was due counts as 10 s late.
func (x bench) run(b *testing.B, n int, rest time.Duration, due func(i int) time.Time) (late []time.Duration, again int) {
	b.Helper()
	x.scheduleAll(b, n, due)
	if full && time.Now().After(due(0)) {
		b.Fatal("it took too long to schedule the tasks")
	}
	const most = 10 * time.Second
	first, again := x.await(n, due(n-1).Add(most), rest)
	for i, t := range first {
		if t.IsZero() {
			late = append(late, most)
		} else {
			late = append(late, t.Sub(due(i)))
		}
	}
	slices.Sort(late)
	return late, again
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// reportLate reports sorted latenesses.
func reportLate(b *testing.B, late []time.Duration) {
	b.Helper()
	b.ReportMetric(max(0, -milliseconds(late[0])), "early-ms")
	b.ReportMetric(milliseconds(late[len(late)/2]), "p50-late-ms")
	b.ReportMetric(milliseconds(late[len(late)*99/100]), "p99-late-ms")
	b.ReportMetric(milliseconds(late[len(late)-1]), "max-late-ms")
}

// server is what a server has used.
type server struct {
	seconds float64 // of processor time
	scripts int64
}

func (x bench) server(b *testing.B) server {
	b.Helper()
	used := server{seconds: redistest.ProcessorTime(b, x.rdb)}
	for line := range strings.Lines(x.rdb.Info(b.Context(), "commandstats").Val()) {
		if text, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			_, _ = fmt.Sscanf(text, "%d", &used.scripts)
		}
	}
	return used
}

// reportServer reports what the server has used for n tasks.
func (x bench) reportServer(b *testing.B, before server, n int) {
	b.Helper()
	after := x.server(b)
	b.ReportMetric((after.seconds-before.seconds)*1e6/float64(n), "server-us/task")
	b.ReportMetric(float64(after.scripts-before.scripts)/float64(n), "scripts/task")
}

// BenchmarkEvenly is tasks that are due one after the other, for 4 processes. server-us/task includes their
// scheduling.
func BenchmarkEvenly(b *testing.B) {
	for _, rate := range []int{2000, 10_000} {
		n, impls := size(5*2000), peers
		if rate > 2000 {
			n = size(2 * 10_000)
		}
		if rate > 2000 || !full {
			impls = fast
		}
		for _, impl := range impls {
			b.Run(fmt.Sprintf("rate=%d/impl=%s", rate, impl), func(b *testing.B) {
				x := open(b, impl, 4, lease)
				before := x.server(b)
				for b.Loop() {
					begin := time.Now().Add(lead(n))
					late, _ := x.run(b, n, 0, func(i int) time.Time {
						return begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
					})
					reportLate(b, late)
				}
				x.reportServer(b, before, n*b.N)
			})
		}
	}
}

// BenchmarkInstant is tasks that are due at one instant.
func BenchmarkInstant(b *testing.B) {
	n := size(20_000)
	for _, processes := range []int{4, 16} {
		for _, impl := range fast {
			if processes == 16 && impl != "cogwheel" {
				continue
			}
			b.Run(fmt.Sprintf("processes=%d/impl=%s", processes, impl), func(b *testing.B) {
				x := open(b, impl, processes, lease)
				before := x.server(b)
				for b.Loop() {
					due := time.Now().Add(lead(n))
					late, _ := x.run(b, n, 0, func(int) time.Time { return due })
					reportLate(b, late)
				}
				x.reportServer(b, before, n*b.N)
			})
		}
	}
}

// BenchmarkAtOnce is tasks without a delay that 64 goroutines of one process schedule and 4 processes run.
func BenchmarkAtOnce(b *testing.B) {
	n := size(20_000)
	for _, impl := range peers {
		b.Run("impl="+impl, func(b *testing.B) {
			x := open(b, impl, 4, lease)
			x.settle()
			before := x.server(b)
			var spent time.Duration
			for b.Loop() {
				begin := time.Now()
				x.scheduleAll(b, n, func(int) time.Time { return time.Time{} })
				first, _ := x.await(n, begin.Add(time.Minute), 0)
				if slices.ContainsFunc(first, time.Time.IsZero) {
					b.Fatal("not all tasks have run")
				}
				spent += slices.MaxFunc(first, time.Time.Compare).Sub(begin)
			}
			b.ReportMetric(float64(n*b.N)/spent.Seconds(), "tasks/s")
			x.reportServer(b, before, n*b.N)
		})
	}
}

// settle lets the processes connect and load their scripts.
func (x bench) settle() {
	if full {
		time.Sleep(time.Second)
	}
}

// BenchmarkWaiting is tasks that are due in an hour, and 4 processes that wait for them. B/task is the server's memory
// for a task without its id and payload, commands/s what a process sends in a second.
func BenchmarkWaiting(b *testing.B) {
	n, rest := size(100_000), 50*time.Millisecond
	if full {
		rest = 10 * time.Second
	}
	const processes = 4
	for _, impl := range peers {
		b.Run("impl="+impl, func(b *testing.B) {
			x := open(b, impl, processes, lease)
			x.settle()
			due := time.Now().Add(time.Hour)
			memory := x.info(b, "used_memory")
			for b.Loop() {
				x.scheduleAll(b, n, func(int) time.Time { return due })
				stored := float64(x.info(b, "used_memory")-memory) / float64(n)
				x.settle()
				reads := x.info(b, "total_reads_processed")
				time.Sleep(rest)
				reads = x.info(b, "total_reads_processed") - reads - 1 // that of INFO
				b.ReportMetric(stored-float64(len(id(0))+len(payload)), "B/task")
				b.ReportMetric(float64(reads)/rest.Seconds()/processes, "commands/s")
			}
		})
	}
}

// info returns a number that the server tells.
func (x bench) info(b *testing.B, field string) (n int64) {
	b.Helper()
	for line := range strings.Lines(x.rdb.Info(b.Context(), "memory", "stats").Val()) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("no field ", field)
	return 0
}

// BenchmarkCrash kills a process whose handlers are running and measures how long after the end of each lease the second
// attempt begins in another process. asynq takes no part, as it needs minutes.
func BenchmarkCrash(b *testing.B) {
	lease := time.Second
	if full {
		lease = 3 * time.Second
	}
	b.Run("impl=cogwheel", func(b *testing.B) {
		const n = 64
		var late []time.Duration
		for b.Loop() {
			x := open(b, "cogwheel", 1, lease, childHold+"=yes")
			x.scheduleAll(b, n, func(int) time.Time { return time.Time{} })
			x.await(n, time.Now().Add(time.Minute), 0)
			time.Sleep(lease / 2) // some leases have been renewed
			x.kill()
			time.Sleep(10 * time.Millisecond) // what it sent last has arrived
			ends := make(map[string]time.Time)
			for _, z := range x.rdb.ZRangeWithScores(b.Context(), "{"+queue+"}:delay:running", 0, -1).Val() {
				ends[z.Member.(string)] = time.UnixMicro(int64(z.Score))
			}
			if len(ends) != n {
				b.Fatal(len(ends), " tasks were running")
			}
			heirs := startFleet(b, "cogwheel", x.rdb.Options().Addr, 2, lease)
			first, _ := heirs.await(n, time.Now().Add(time.Minute), 0)
			for i, t := range first {
				late = append(late, t.Sub(ends[id(i)]))
			}
		}
		slices.Sort(late)
		reportLate(b, late)
	})
}

// BenchmarkLostReplies is BenchmarkEvenly with 2000 tasks a second while the processes lose one in 50 replies of scripts,
// each with its connection. again is how many tasks ran twice.
func BenchmarkLostReplies(b *testing.B) {
	n := size(4 * 2000)
	rest := 100 * time.Millisecond
	if full {
		rest = time.Second
	}
	for _, impl := range fast {
		b.Run("impl="+impl, func(b *testing.B) {
			x := open(b, impl, 4, lease, childLosses+"=50")
			for b.Loop() {
				begin := time.Now().Add(lead(n))
				late, again := x.run(b, n, rest, func(i int) time.Time {
					return begin.Add(time.Duration(i) * time.Second / 2000)
				})
				reportLate(b, late)
				b.ReportMetric(float64(again), "again")
			}
		})
	}
}
