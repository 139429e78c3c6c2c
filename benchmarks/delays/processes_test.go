package delays_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
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

// The test binary runs itself as the processes that serve a queue.
const (
	childImpl    = "DELAYS_BENCH_IMPL"
	childAddr    = "DELAYS_BENCH_ADDR"
	childWorkers = "DELAYS_BENCH_WORKERS"
	childLease   = "DELAYS_BENCH_LEASE"
	childHold    = "DELAYS_BENCH_HOLD"   // if set, handlers do not return
	childLosses  = "DELAYS_BENCH_LOSSES" // if set, one in so many replies of scripts is lost
)

// runChild serves the queue until it is killed or its parent ends, and prints "number microseconds" for each task when its handler begins.
func runChild(name string) error {
	workers, err := strconv.Atoi(os.Getenv(childWorkers))
	if err != nil {
		return err
	}
	lease, err := time.ParseDuration(os.Getenv(childLease))
	if err != nil {
		return err
	}
	opts := &redis.Options{Addr: os.Getenv(childAddr)}
	if text := os.Getenv(childLosses); text != "" {
		every, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		d := &redistest.FaultDialer{}
		opts.Dialer = d.Dial
		go func() {
			for {
				<-d.LoseReply("evalsha", every, redistest.Cut)
			}
		}()
	}
	p, err := newImpl(name, redis.NewClient(opts), lease)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		os.Exit(1)
	}()
	out := newReporter()
	return p.serve(context.Background(), workers, func(id string) {
		out.begun(id, time.Now())
		if os.Getenv(childHold) != "" {
			select {}
		}
	})
}

// reporter prints which tasks have begun, up to 5 ms later, so that handlers do not wait for the pipe.
type reporter struct {
	mu    sync.Mutex
	lines []byte
	some  chan struct{}
}

func newReporter() *reporter {
	r := &reporter{some: make(chan struct{}, 1)}
	go func() {
		for range r.some {
			time.Sleep(5 * time.Millisecond)
			r.mu.Lock()
			lines := r.lines
			r.lines = nil
			r.mu.Unlock()
			_, _ = os.Stdout.Write(lines)
		}
	}()
	return r
}

func (r *reporter) begun(id string, t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, strings.TrimPrefix(id, prefix)...)
	r.lines = append(r.lines, ' ')
	r.lines = strconv.AppendInt(r.lines, t.UnixMicro(), 10)
	r.lines = append(r.lines, '\n')
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// begun is the begin of a task.
type begun struct {
	task int
	at   time.Time
}

// fleet is a number of processes that serve the queue.
type fleet struct {
	processes []*exec.Cmd
	begun     chan begun
}

// startFleet starts processes with 64 workers in all. They end with the benchmark.
func startFleet(b *testing.B, impl, addr string, processes int, lease time.Duration, env ...string) *fleet {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	f := &fleet{begun: make(chan begun, 1000)}
	for range processes {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childImpl+"="+impl, childAddr+"="+addr,
			childWorkers+"="+strconv.Itoa(workers/processes), childLease+"="+lease.String())
		cmd.Env = append(cmd.Env, env...)
		cmd.Stderr = os.Stderr
		_, err := cmd.StdinPipe() // its end tells the process to end
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		f.processes = append(f.processes, cmd)
		go func() {
			for in := bufio.NewScanner(out); in.Scan(); {
				var x begun
				var micros int64
				if _, err := fmt.Sscanf(in.Text(), "%d %d", &x.task, &micros); err == nil {
					x.at = time.UnixMicro(micros)
					f.begun <- x
				}
			}
		}()
	}
	b.Cleanup(f.kill)
	return f
}

// kill ends the processes.
func (f *fleet) kill() {
	for _, cmd := range f.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	f.processes = nil
}

// await returns when each of n tasks began for the first time, and how often any began again, until all have begun and
// for the time of rest afterwards. A task that has not begun by the end has the zero time.
func (f *fleet) await(n int, by time.Time, rest time.Duration) (first []time.Time, again int) {
	first = make([]time.Time, n)
	left := n
	end := time.NewTimer(time.Until(by))
	defer end.Stop()
	for left > 0 || rest > 0 {
		select {
		case x := <-f.begun:
			if !first[x.task].IsZero() {
				again++
				continue
			}
			first[x.task] = x.at
			if left--; left == 0 {
				end.Reset(rest)
			}
		case <-end.C:
			return first, again
		}
	}
	return first, again
}
