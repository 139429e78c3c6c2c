package peers_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// fleet is some workers of several libraries, and what they have claimed.
type fleet struct {
	t       *testing.T
	running sync.WaitGroup // readers of workers
	changed chan struct{}  // holds a value after a change of what follows

	mu      sync.Mutex
	ending  bool
	workers map[*worker]bool // those that were not told to stop
	claims  []claim          // that have ended
	losses  []string         // holds that were lost before they might have ended
	counts  map[string]count // by library
}

// count is what the workers of a library have done.
type count struct{ holds, kills int }

func newFleet(t *testing.T) *fleet {
	f := &fleet{
		t: t, changed: make(chan struct{}, 1), workers: map[*worker]bool{}, counts: map[string]count{},
	}
	t.Cleanup(f.stop)
	return f
}

// worker is a process, and its holds by the number of their loop.
type worker struct {
	setup setup
	cmd   *exec.Cmd
	stdin io.Closer
	open  map[string]claim // only the reader uses it
	ready chan struct{}    // closed when its loops begin

	mu     sync.Mutex
	killed instant // when it lived for the last time, or 0
}

// start starts a worker, which is started again whenever it is killed at a hold.
func (f *fleet) start(s setup) *worker {
	f.t.Helper()
	w, err := f.launch(s)
	require.NoError(f.t, err)
	return w
}

func (f *fleet) launch(s setup) (*worker, error) {
	cmd, err := command(s)
	if err != nil {
		return nil, err
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{setup: s, cmd: cmd, stdin: stdin, open: map[string]claim{}, ready: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers[w] = true
	if f.ending {
		_ = stdin.Close()
	}
	f.running.Go(func() {
		again := f.follow(w, stdout)
		if err := cmd.Wait(); err != nil && w.lastAlive() == 0 {
			f.t.Errorf("a worker of %s ended: %v\n%s", s.Library, err, complaints.String())
		}
		f.mu.Lock()
		delete(f.workers, w)
		again = again && !f.ending
		f.mu.Unlock()
		if again {
			if _, err := f.launch(s); err != nil {
				f.t.Error(err)
			}
		}
	})
	return w, nil
}

// command returns the command of a worker.
func command(s setup) (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var cmd *exec.Cmd
	if s.Library == node4Lib || s.Library == node5Lib {
		dir, err := nodeModules()
		if err != nil {
			return nil, err
		}
		cmd = exec.Command("node", "worker.js")
		cmd.Dir = dir
	} else {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd = exec.Command(self)
	}
	cmd.Env = append(os.Environ(), redistest.ChildEnv+"=work", setupEnv+"="+string(text))
	return cmd, nil
}

// follow reads what the worker prints until it ends, and reports whether it was killed at a hold.
func (f *fleet) follow(w *worker, stdout io.Reader) (killed bool) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		doomed, err := f.read(w, lines.Text())
		if err != nil {
			f.t.Errorf("a line of %s: %q: %v", w.setup.Library, lines.Text(), err)
		}
		if doomed && w.kill() {
			killed = true
		}
	}
	for id := range maps.Clone(w.open) {
		f.end(w, id, w.lastAlive())
	}
	if w.lastAlive() != 0 {
		f.count(w, count{kills: 1})
	}
	return killed
}

// read takes a line of a worker, and reports whether the worker wants to be killed.
//
//	ready                         its loops begin
//	hold  loop name begin until   it has the lock from begin to until, or to an earlier end or death
//	until loop until              it has extended the hold
//	end   loop instant            it is about to release the hold
//	lost  loop call               the call said that it is not held, before it might have ended
//	doomed loop                   it holds the lock until it is killed
func (f *fleet) read(w *worker, line string) (doomed bool, err error) {
	verb, rest, _ := strings.Cut(line, " ")
	id, rest, _ := strings.Cut(rest, " ")
	switch verb {
	case "ready":
		close(w.ready)
	case "hold":
		c := claim{library: w.setup.Library}
		_, err = fmt.Sscan(rest, &c.name, &c.begin, &c.end)
		w.open[id] = c
	case "until":
		c := w.open[id]
		_, err = fmt.Sscan(rest, &c.end)
		w.open[id] = c
	case "end":
		var at instant
		_, err = fmt.Sscan(rest, &at)
		f.end(w, id, at)
	case "lost":
		f.mu.Lock()
		f.losses = append(f.losses, w.setup.Library+" by "+rest)
		f.mu.Unlock()
	case "doomed":
		return true, nil
	default:
		err = fmt.Errorf("unknown")
	}
	return false, err
}

// end ends a claim at an instant, or at its end if that comes first.
func (f *fleet) end(w *worker, id string, at instant) {
	c := w.open[id]
	delete(w.open, id)
	c.end = min(c.end, at)
	f.mu.Lock()
	f.claims = append(f.claims, c)
	f.mu.Unlock()
	f.count(w, count{holds: 1})
}

func (f *fleet) count(w *worker, more count) {
	f.mu.Lock()
	c := f.counts[w.setup.Library]
	f.counts[w.setup.Library] = count{c.holds + more.holds, c.kills + more.kills}
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// kill kills the process, and reports whether this call did. The process kept its locks at least until the call.
func (w *worker) kill() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.killed != 0 {
		return false
	}
	alive := now()
	if w.cmd.Process.Kill() != nil {
		return false
	}
	w.killed = alive
	return true
}

func (w *worker) lastAlive() instant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killed
}

// await waits until cond holds for the counts.
func (f *fleet) await(limit time.Duration, cond func(counts map[string]count) bool) {
	f.t.Helper()
	ctx := redistest.Within(f.t, limit)
	for {
		f.mu.Lock()
		done := cond(f.counts)
		f.mu.Unlock()
		if done || f.t.Failed() {
			return
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			f.t.Fatalf("not enough within %v: %+v", limit, f.counted())
		}
	}
}

func (f *fleet) counted() map[string]count {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// retire tells a worker to end its holds and to end.
func (w *worker) retire() { _ = w.stdin.Close() }

// stop ends all workers, and returns when they have ended.
func (f *fleet) stop() {
	f.mu.Lock()
	f.ending = true
	workers := maps.Clone(f.workers)
	f.mu.Unlock()
	for w := range workers {
		w.retire()
	}
	f.running.Wait()
}

// judge ends the fleet and requires that nothing overlaps, and that no hold was lost.
func (f *fleet) judge() []claim {
	f.t.Helper()
	f.stop()
	require.Empty(f.t, overlaps(f.claims))
	require.Empty(f.t, f.losses)
	return f.claims
}
