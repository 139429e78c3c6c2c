package fleets_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The test binary runs itself as the processes of a fleet.
const (
	childLoad = "FLEETS_BENCH_LOAD"
	childAddr = "FLEETS_BENCH_ADDR"
)

// result is what one process says of the time in which it was measured.
type result struct {
	Times   []time.Duration // of each operation that began then: how long it had waited, or how late it was
	Waiting time.Duration   // how long the operation has waited that it waits for at the end
}

// recorder notes the operations that begin from one time to another.
type recorder struct {
	mu       sync.Mutex
	from, to time.Time
	times    []time.Duration
	since    time.Time // when the wait began that has not ended
}

// waits notes that a wait begins.
func (r *recorder) waits() (since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = time.Now()
	return r.since
}

// begun notes an operation that has begun, and since when it could have.
func (r *recorder) begun(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !now.Before(r.from) && now.Before(r.to) {
		r.times = append(r.times, now.Sub(since))
	}
	r.since = time.Time{}
}

// result returns what was noted, at the end.
func (r *recorder) result() (found result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found.Times = r.times
	if !r.since.IsZero() && r.since.Before(r.to) {
		found.Waiting = r.to.Sub(r.since)
	}
	return found
}

// runChild connects, says so, and works from the line with the two times of the measurement on until it is killed or its
// parent ends. At the end of the measurement it prints its result, and goes on.
func runChild(text string) error {
	var l load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr), PoolSize: 4})
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		return err
	}
	fmt.Println("ready")
	var from, to int64
	in := bufio.NewReader(os.Stdin)
	if _, err := fmt.Fscanln(in, &from, &to); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in) // until the parent ends
		os.Exit(1)
	}()
	r := &recorder{from: time.UnixMicro(from), to: time.UnixMicro(to)}
	failed := make(chan error, 1)
	go func() { failed <- work(l, rdb, r) }()
	select {
	case err := <-failed:
		return err
	case <-time.After(time.Until(r.to)):
	}
	if err := json.NewEncoder(os.Stdout).Encode(r.result()); err != nil {
		return err
	}
	return <-failed
}

// work does not end but by a failure.
func work(l load, rdb *redis.Client, r *recorder) error {
	if l.Work == "tasks" {
		err := serve(context.Background(), l, rdb, r.begun)
		return errors.Join(errors.New("serving has ended"), err)
	}
	take, err := newTake(l, rdb)
	if err != nil {
		return err
	}
	for {
		since := r.waits()
		giveBack, err := take(context.Background())
		if err != nil {
			return err
		}
		r.begun(since)
		time.Sleep(l.Hold)
		if err := giveBack(); err != nil {
			return err
		}
	}
}

// child is one process of a fleet.
type child struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

type fleet []child

// startFleet starts n processes, and returns when they have connected. As all of them share the cores of one machine,
// each has one thread for Go.
func startFleet(b *testing.B, l load, addr string, n int) (f fleet) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	text, err := json.Marshal(l)
	if err != nil {
		b.Fatal(err)
	}
	for range n {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childLoad+"="+string(text), childAddr+"="+addr, "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			f.kill()
			b.Fatal(err)
		}
		f = append(f, child{cmd, in, bufio.NewReader(out)})
	}
	for _, c := range f {
		if line, err := c.out.ReadString('\n'); line != "ready\n" {
			f.kill()
			b.Fatalf("a process did not start: %q, %v", line, err)
		}
	}
	return f
}

// begin has all processes work, and be measured between two times.
func (f fleet) begin(b *testing.B, from, to time.Time) {
	b.Helper()
	for _, c := range f {
		if _, err := fmt.Fprintln(c.in, from.UnixMicro(), to.UnixMicro()); err != nil {
			b.Fatal(err)
		}
	}
}

// results returns what each process says after the measurement.
func (f fleet) results(b *testing.B) (all []result) {
	b.Helper()
	for _, c := range f {
		var r result
		if err := json.NewDecoder(c.out).Decode(&r); err != nil {
			b.Fatalf("a process has no result: %v", err)
		}
		all = append(all, r)
	}
	return all
}

// kill ends the processes.
func (f fleet) kill() {
	for _, c := range f {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}
