//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// capacity prints the costs of held locks as a table, with a row for each number of locks. A row takes as long as
// acquiring the locks, plus a lease, in which every lock is renewed. Client and server share the machine.
func capacity(points string, lease time.Duration) error {
	fmt.Println("| held locks | lease | client memory, MB | per lock, B | goroutines | renewals/s | lease/3 predicts | batches/s | " +
		"client CPU, % | server CPU, % | scripts, µs per renewal | server memory, MB | per lock, B | network in + out, kB/s |")
	fmt.Println("|---" + strings.Repeat("|---:", 13) + "|")
	for text := range strings.SplitSeq(points, ",") {
		n, err := strconv.Atoi(text)
		if err == nil {
			err = holdLocks(n, lease)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holdLocks holds n locks for a lease and prints their row.
func holdLocks(n int, lease time.Duration) (err error) {
	server, err := startRedis()
	if err != nil {
		return err
	}
	defer server.stop()
	rdb := redis.NewClient(&redis.Options{Addr: server.addr})
	defer rdb.Close()
	ctx := context.Background()
	locks, err := redislock.New(rdb, redislock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	// One lock is held from the start, so that what a client has in any case is not counted.
	held := make([]*redislock.Lock, n)
	if _, err = locks.Mutex("first", redislock.WithLease(lease)).Lock(ctx); err != nil {
		return err
	}
	before, err := readUsage(rdb)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := each(n, func(i int) (err error) {
		held[i], err = locks.Mutex("lock:"+strconv.Itoa(i), redislock.WithLease(lease)).Lock(ctx)
		return err
	}); err != nil {
		return err
	}
	log.Printf("%d locks taken, %.0f/s", n, float64(n)/time.Since(began).Seconds())
	time.Sleep(lease / 3) // the first renewals, and the connections that they open
	full, err := readUsage(rdb)
	if err != nil {
		return err
	}
	time.Sleep(lease * 2 / 3)
	after, err := readUsage(rdb)
	if err != nil {
		return err
	}
	lost := 0
	for _, l := range held {
		if l.Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d locks were lost: this is more than the machine carries", lost, n)
	}
	seconds := after.at.Sub(full.at).Seconds()
	per := func(from, to float64) float64 { return (to - from) / seconds }
	renewals := per(full.stat("hexists.calls"), after.stat("hexists.calls"))
	scripts := after.stat("evalsha.usec") - full.stat("evalsha.usec")
	const mega, kilo = 1e6, 1e3
	perLock := func(from, to float64) string {
		if n < 1000 {
			return "–" // it is lost in what else changes
		}
		return fmt.Sprintf("%.0f", (to-from)/float64(n))
	}
	fmt.Printf("| %d | %v | %.1f | %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %s | %.0f |\n", n, lease,
		(full.heap-before.heap)/mega, perLock(before.heap, full.heap), after.goroutines,
		renewals, float64(n+1)/(lease.Seconds()/3), per(full.stat("evalsha.calls"), after.stat("evalsha.calls")),
		100*per(full.clientCPU, after.clientCPU), 100*per(full.serverCPU, after.serverCPU),
		scripts/max(1, after.stat("hexists.calls")-full.stat("hexists.calls")),
		(full.serverMemory-before.serverMemory)/mega, perLock(before.serverMemory, full.serverMemory),
		per(full.network, after.network)/kilo)
	runtime.KeepAlive(held)
	return locks.Close(ctx)
}

// usage is what client and server have used so far.
type usage struct {
	at                   time.Time
	heap, serverMemory   float64 // bytes
	goroutines           int
	clientCPU, serverCPU float64 // seconds
	network              float64 // bytes
	stats                map[string]float64
}

func (u usage) stat(name string) float64 { return u.stats[name] }

// readUsage collects garbage first, so that only live objects count.
func readUsage(rdb *redis.Client) (u usage, err error) {
	runtime.GC()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var own syscall.Rusage
	if err = syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return u, err
	}
	info, err := rdb.Info(context.Background(), "all").Result()
	if err != nil {
		return u, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	number := func(name string) float64 {
		n, _ := strconv.ParseFloat(fields[name], 64)
		return n
	}
	return usage{
		at: time.Now(), heap: float64(memory.HeapAlloc), goroutines: runtime.NumGoroutine(),
		clientCPU:    float64(own.Utime.Nano()+own.Stime.Nano()) / 1e9,
		serverCPU:    number("used_cpu_user") + number("used_cpu_sys"),
		serverMemory: number("used_memory"),
		network:      number("total_net_input_bytes") + number("total_net_output_bytes"),
		stats:        commandStats(fields),
	}, nil
}

// commandStats returns name.calls and name.usec of each command.
func commandStats(fields map[string]string) map[string]float64 {
	stats := map[string]float64{}
	for name, value := range fields {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			what, text, _ := strings.Cut(part, "=")
			stats[command+"."+what], _ = strconv.ParseFloat(text, 64)
		}
	}
	return stats
}

// each calls f for 0 to n-1 on 64 goroutines.
func each(n int, f func(int) error) error {
	const goroutines = 64
	failed := make([]error, goroutines)
	var running sync.WaitGroup
	for part := range goroutines {
		running.Go(func() {
			for i := part; i < n && failed[part] == nil; i += goroutines {
				failed[part] = f(i)
			}
		})
	}
	running.Wait()
	return errors.Join(failed...)
}
