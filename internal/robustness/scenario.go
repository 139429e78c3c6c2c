package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
	"github.com/cogwheel-go/cogwheel/internal/robustness/history"
)

// Scenario is clients, servers and what may go wrong.
type Scenario struct {
	Name     string
	Kind     string
	Topology Topology
	Settings
	Processes int
	Clients   int // of each process
	Callers   int // of each client
	Objects   int
	MaxHold   time.Duration
	GiveUp    float64
	Faults    []*Fault
	Every     time.Duration // the longest pause between two faults
	Length    time.Duration
	Seed      uint64
}

func (s *Scenario) kind() *Kind { return kindOf(s.Kind) }

// losesData reports whether Redis may forget what it confirmed, which voids exclusion.
func (s *Scenario) losesData() bool {
	return slices.ContainsFunc(s.Faults, func(f *Fault) bool { return f.Loses })
}

// Run is one run of a scenario. Its methods belong to the goroutine of the test.
type Run struct {
	*Scenario
	ctx      context.Context
	tb       testing.TB
	rnd      *rand.Rand
	servers  []*redistest.Server // those that hold data
	addrs    []string            // for the clients
	store    *redistest.Server
	admin    redis.UniversalClient
	objects  []string
	children []*child
	started  int
	reading  sync.WaitGroup
	history  history.History
	spans    []check.Span
	effects  map[string]int
}

// Do runs the scenario and returns what the checks found.
func (s *Scenario) Do(t *testing.T) *Result {
	t.Helper()
	return s.execute(t).judge()
}

// execute runs the scenario.
func (s *Scenario) execute(t *testing.T) *Run {
	t.Helper()
	r := &Run{
		Scenario: s, ctx: t.Context(), tb: t, rnd: rand.New(rand.NewPCG(s.Seed, 0)), effects: make(map[string]int),
	}
	r.setUp()
	for range s.Processes {
		require.NoError(t, r.start())
	}
	r.sleep(200 * time.Millisecond) // a part of the history without faults
	for end := time.Now().Add(s.Length); time.Now().Before(end); {
		r.sleep(r.upTo(s.Every))
		if len(s.Faults) > 0 {
			r.inject(s.Faults[r.rnd.IntN(len(s.Faults))])
		}
	}
	r.finish()
	return r
}

func (r *Run) setUp() {
	busy := []string{"--lua-time-limit", "20"} // milliseconds, after which SCRIPT KILL is answered
	aof := append([]string{"--appendonly", "yes", "--appendfsync", "always"}, busy...)
	switch r.Topology {
	case Sentinel:
		g := redistest.StartSentinel(r.tb, busy...)
		r.servers = append([]*redistest.Server{g.Primary}, g.Replicas...)
		for _, s := range g.Sentinels {
			r.addrs = append(r.addrs, s.Addr())
		}
	case Cluster:
		c := redistest.StartCluster(r.tb, busy...)
		r.servers, r.addrs = c.Nodes(), c.Addrs()
	default:
		n := 1
		if r.Topology == Quorum {
			n = 5
		}
		for range n {
			s := redistest.Start(r.tb, aof...)
			r.servers, r.addrs = append(r.servers, s), append(r.addrs, s.Addr())
		}
	}
	rdbs := r.Topology.connect(r.addrs, &redistest.FaultDialer{}, 3)
	r.tb.Cleanup(func() {
		for _, rdb := range rdbs {
			_ = rdb.Close()
		}
	})
	r.admin = rdbs[0]
	if r.kind().Fenced || r.kind().Writes {
		r.store = redistest.Start(r.tb)
	}
	for i := range r.Objects {
		object := fmt.Sprintf("object-%d", i)
		r.objects = append(r.objects, object)
		if prepare := r.kind().Prepare; prepare != nil {
			require.NoError(r.tb, prepare(r.ctx, r.admin, object))
		}
	}
}

// inject causes a fault. While it lasts, nobody can be expected to get anything.
func (r *Run) inject(f *Fault) {
	from := history.Now()
	effect, err := f.Inject(r)
	require.NoError(r.tb, err, f.Name)
	r.spans = append(r.spans, check.Span{From: from, To: history.Now()})
	if effect {
		r.effects[f.Name]++
	}
}

// child is a process of a run.
type child struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	ended  chan error
}

// start starts a process. Numbers are never used again.
func (r *Run) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r.started++
	orders := Orders{
		Process: r.started, Kind: r.Kind, Settings: r.Settings, Topology: r.Topology, Addrs: r.addrs, Objects: r.objects,
		Clients: r.Clients, Callers: r.Callers, MaxHold: r.MaxHold, GiveUp: r.GiveUp, Seed: r.Seed + uint64(r.started)*1000,
	}
	if r.store != nil {
		orders.Store = r.store.Addr()
	}
	text, err := json.Marshal(orders)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(r.ctx, self)
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c := &child{number: r.started, cmd: cmd, stdin: stdin, ended: make(chan error, 1)}
	r.children = append(r.children, c)
	r.reading.Go(func() {
		read := r.history.Read(stdout)
		err := cmd.Wait()
		if stderr.Len() > 0 {
			err = errors.Join(err, errors.New(stderr.String()))
		}
		c.ended <- errors.Join(read, err)
	})
	return nil
}

func (c *child) signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }

func (c *child) fault(f networkFault) error { return json.NewEncoder(c.stdin).Encode(f) }

// replace kills a process and starts another one.
func (r *Run) replace(c *child) error {
	if err := r.kill(c); err != nil {
		return err
	}
	r.children = slices.DeleteFunc(r.children, func(other *child) bool { return other == c })
	return r.start()
}

func (r *Run) kill(c *child) error {
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	<-c.ended // the error is that of the kill
	r.note(history.Killed, c)
	return nil
}

// note adds a step of a process to the history.
func (r *Run) note(step history.Step, c *child) {
	r.history.Add(history.Event{Step: step, At: history.Now(), Client: history.ClientID(c.number, 0)})
}

// finish kills some processes in the midst of their work, lets the others end, and waits for what the dead may keep.
func (r *Run) finish() {
	var ending []*child
	for i, c := range r.children {
		if i%4 == 3 && !r.kind().Counting {
			require.NoError(r.tb, r.kill(c))
		} else {
			require.NoError(r.tb, c.stdin.Close())
			ending = append(ending, c)
		}
	}
	for _, c := range ending {
		require.NoError(r.tb, <-c.ended, "process %d", c.number)
	}
	r.reading.Wait()
}
