package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// Orders are what a process that runs schedules is to do. Runs have processes of their own, so that one that
// crashes or never ends is a result like any other.
type Orders struct {
	Seed     uint64    `json:"seed"` // the first of so many seeds
	Count    int       `json:"count"`
	Schedule *Schedule `json:"schedule,omitempty"` // instead, this schedule so many times
	Kinds    []string  `json:"kinds,omitempty"`    // of objects, rather than all of the library
	Health   bool      `json:"health,omitempty"`   // only those of the seeds that have faults of healthFaults
	Fleet    bool      `json:"fleet,omitempty"`    // only those of the seeds that are fleets
	Binary   string    `json:"-"`                  // the test binary that runs them, rather than this one
}

// ordersEnv names the variable that makes a test binary such a process. It writes results to the third file.
const ordersEnv = "SIM_ORDERS"

// child is the test that carries orders out.
const child = "TestOrders"

// Obey carries out the orders of the environment, and reports whether there are any.
func Obey(t *testing.T) bool {
	t.Helper()
	text := os.Getenv(ordersEnv)
	if text == "" {
		return false
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	redis.SetLogger(silence{})
	var o Orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	results := json.NewEncoder(os.NewFile(3, "results"))
	for i := range o.Count {
		s := o.Schedule
		if s == nil {
			s = Draw(o.Seed+uint64(i), o.Kinds...)
		}
		if o.Health && !s.isOfHealth() || o.Fleet && s.Fleet == "" {
			if err := results.Encode(&Result{Seed: s.Seed, Skipped: true}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		w := newWorld(s)
		alarm := watch(func(stack string) {
			res := &Result{Seed: s.Seed, Stopped: stack}
			if stack == "" {
				res.Faults, res.Trace = []check.Fault{{Promise: endless, Object: "process"}}, w.soFar()
			}
			_ = results.Encode(res)
			os.Exit(0)
		})
		res := w.Run(t)
		alarm.Stop()
		if err := results.Encode(res); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// watch calls f if the time of the bubble stops: a goroutine that waits for a mutex counts as running, so
// if the one that holds the mutex waits for the network, as go-redis does while it connects a subscription, the
// bubble waits for ever. That says nothing about the library, whose mutexes are not held while it waits.
//
// A run that is busy for longer than any run needs does not end: then f is called without a stack.
func watch(f func(stack string)) *time.Timer {
	var alarm *time.Timer
	began, used := processorTime(), processorTime()
	known := make(chan struct{})
	alarm = time.AfterFunc(stopLimit, func() {
		<-known
		now := processorTime()
		if now-began > busyLimit {
			f("")
		}
		if now-used > stopLimit/20 {
			used = now
			alarm.Reset(stopLimit)
			return
		}
		stack := make([]byte, 1<<20)
		stack = stack[:runtime.Stack(stack, true)]
		for goroutine := range strings.SplitSeq(string(stack), "\n\n") {
			if mutexWait.MatchString(goroutine) {
				f(goroutine)
			}
		}
	})
	close(known)
	return alarm
}

// mutexWait matches the stack of a goroutine of a bubble that waits for a mutex.
var mutexWait = regexp.MustCompile(`sync\.(Mutex|RWMutex)\.R?Lock, synctest`)

// stopLimit is how long a process stands still whose bubble has stopped.
const stopLimit = 2 * time.Second

// busyLimit is more processor time than any run needs.
const busyLimit = 50 * time.Second

func processorTime() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err) // only a bad argument fails
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// silence drops what go-redis logs about connections.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// runLimit is more time than any run needs: one that takes longer does not end.
const runLimit = 3 * time.Minute

// perProcess is how many runs a process makes: what a run leaves behind ends with the process.
const perProcess = 100

// Each runs the orders in processes, and calls f with each result, until f returns false.
func (o Orders) Each(f func(*Result) bool) error {
	for o.Count > 0 {
		part := o
		part.Count = min(o.Count, perProcess)
		done, more, err := part.inProcess(f)
		if err != nil || !more {
			return err
		}
		o.Seed += uint64(done)
		o.Count -= done
	}
	return nil
}

// inProcess runs the orders until a run crashes or does not end, and returns how many were run.
func (o Orders) inProcess(f func(*Result) bool) (done int, more bool, err error) {
	if o.Binary == "" {
		if o.Binary, err = os.Executable(); err != nil {
			return 0, false, err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return 0, false, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return 0, false, err
	}
	defer from.Close()
	cmd := exec.Command(o.Binary, "-test.run=^"+child+"$", "-test.timeout=0")
	// One thread, without preemption: the fewer choices the scheduler has, the more often a run repeats.
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	cmd.ExtraFiles = []*os.File{to}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &out
	if err := cmd.Start(); err != nil {
		_ = to.Close()
		return 0, false, err
	}
	_ = to.Close()
	alarm := time.AfterFunc(runLimit, func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Process.Kill() })
	defer alarm.Stop()
	lines := bufio.NewReader(from)
	over := false // the process ended on purpose, after a run that it could not end
	for done < o.Count {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		alarm.Reset(runLimit)
		res := &Result{}
		if err := json.Unmarshal(line, res); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return done, false, err
		}
		done++
		over = res.Stopped != "" || res.breaks(endless)
		if !f(res) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return done, false, nil
		}
	}
	overdue := !alarm.Stop()
	_ = cmd.Wait() // what it did is in its results
	if done == o.Count || over {
		return done, true, nil
	}
	res := &Result{Seed: o.Seed + uint64(done)}
	if o.Schedule != nil {
		res.Seed = o.Schedule.Seed
	}
	broken := check.Fault{Promise: "the process does not crash", Object: "process", Detail: crash(out.String())}
	if overdue {
		broken = check.Fault{Promise: endless, Object: "process", Detail: fmt.Sprintf("not within %v", runLimit)}
	}
	res.Faults = []check.Fault{broken}
	return done + 1, f(res), nil
}

// endless is the promise that a run breaks that does not end.
const endless = "a run ends"

// crash returns the first lines of what a process wrote when it crashed.
func crash(text string) string {
	if i := strings.Index(text, "panic: "); i >= 0 {
		text = text[i:]
	} else if i := strings.Index(text, "fatal error: "); i >= 0 {
		text = text[i:]
	}
	return text[:min(len(text), 1500)]
}
