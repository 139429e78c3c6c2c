package locks_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// The test binary runs itself as the processes of a fleet.
const (
	childImpl  = "LOCKS_BENCH_IMPL"
	childAddr  = "LOCKS_BENCH_ADDR"
	childRound = "LOCKS_BENCH_ROUND"
	goroutines = 16
)

// runChild hammers the hot name and says how many sections it got.
func runChild(impl string) error {
	d, err := time.ParseDuration(os.Getenv(childRound))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr), PoolSize: 64})
	defer rdb.Close()
	p, err := newPeer(impl, rdb)
	if err != nil {
		return err
	}
	n, err := hammer(context.Background(), p, goroutines, d, func(int) string { return "hot" }, nothing)
	if err != nil {
		return err
	}
	fmt.Println(n)
	if p.close != nil {
		return p.close()
	}
	return nil
}

// BenchmarkHotNameOfAFleet is one lock that 16 goroutines in each of 4 processes want all the time. fairness
// is the share of the process that got least in that of the process that got most.
func BenchmarkHotNameOfAFleet(b *testing.B) {
	const processes = 4
	for _, impl := range impls {
		b.Run(fmt.Sprintf("processes=%d/goroutines=%d/impl=%s", processes, goroutines, impl), func(b *testing.B) {
			server := redistest.Start(b)
			var total, least, most int64
			for b.Loop() {
				counts, err := fleet(b.Context(), impl, server.Addr(), processes)
				if err != nil {
					b.Fatal(err)
				}
				least, most = counts[0], counts[0]
				for _, n := range counts {
					total += n
					least, most = min(least, n), max(most, n)
				}
			}
			b.ReportMetric(float64(total)/(float64(b.N)*fleetRound().Seconds()), "sections/s")
			b.ReportMetric(float64(least)/float64(max(most, 1)), "fairness")
		})
	}
}

func fleetRound() time.Duration {
	if full {
		return 5 * time.Second
	}
	return 300 * time.Millisecond
}

func fleet(ctx context.Context, impl, addr string, processes int) ([]int64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	counts, errs := make([]int64, processes), make([]error, processes)
	var running sync.WaitGroup
	for i := range processes {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), childImpl+"="+impl, childAddr+"="+addr, childRound+"="+fleetRound().String())
		cmd.Stderr = os.Stderr
		running.Go(func() {
			out, err := cmd.Output()
			if err == nil {
				counts[i], err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
			}
			errs[i] = err
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}
