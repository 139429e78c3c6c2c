package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
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
	GiveUp    float64         // the share of calls that wait for some milliseconds only
	Leases    []time.Duration // of the processes in turn, if they differ; Lease is the longest
	Faults    []*Fault
	Every     time.Duration // the longest pause between two faults
	Fleet     bool          // its processes stand in lines, and depend on no poll
	Each      bool          // every fault takes effect, also if that needs more time
	Length    time.Duration
	Quiet     time.Duration // after the last fault
	Seed      uint64
}

func (s *Scenario) kind() *Kind { return KindOf(s.Kind) }

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
	sentinel *redistest.Sentinel // in its present roles
	cluster  *redistest.Cluster  // likewise
	clock    *redistest.Clock    // of the server, if there is one
	addrs    []string            // for the clients
	store    *redistest.Server
	objects  []string
	children []*child
	started  int
	draining bool // processes that start now only serve the tasks that are left
	reading  sync.WaitGroup
	history  history.History
	spans    []check.Span
	outages  []check.Span   // those of servers and networks
	effects  map[string]int // of faults that processes do not carry out themselves
	elected  time.Time      // of the last election in the cluster
	deposed  int            // primaries that faults deposed although they should not
	left     []check.Fault  // what was left at the end
	leaked   int64          // permits that were not free at the end
	moved    time.Duration  // by which the server's clock was ahead for a while
}

// Do runs the scenario and returns what the checks found.
func (s *Scenario) Do(t *testing.T) *Result {
	t.Helper()
	r := s.execute(t)
	r.left = r.leftBehind()
	return r.judge()
}

// execute runs the scenario.
func (s *Scenario) execute(t *testing.T) *Run {
	t.Helper()
	r := &Run{
		Scenario: s, ctx: t.Context(), tb: t, rnd: rand.New(rand.NewPCG(s.Seed, 0)), effects: make(map[string]int),
	}
	r.setUp()
	t.Cleanup(r.saveIfFailed) // before the servers and their logs are gone
	for range s.Processes {
		require.NoError(t, r.start())
	}
	r.sleep(200 * time.Millisecond) // a part of the history without faults
	for end, round := time.Now().Add(s.Length), 0; len(s.Faults) > 0; round++ {
		faults := s.Faults
		if time.Now().After(end) {
			if faults = r.ineffective(); !s.Each || round > rounds || len(faults) == 0 {
				break
			}
		}
		for _, i := range r.rnd.Perm(len(faults)) {
			if s.Each || time.Now().Before(end) {
				r.sleep(r.upTo(s.Every))
				r.inject(faults[i])
			}
		}
	}
	if len(s.Faults) == 0 {
		r.sleep(s.Length)
	}
	r.sleep(s.Quiet)
	r.finish()
	return r
}

// rounds is how often each fault gets a chance to take effect.
const rounds = 4

func (r *Run) setUp() {
	args := append([]string{"--lua-time-limit", "20"}, userArgs...) // milliseconds, after which SCRIPT KILL is answered
	aof := append([]string{"--appendonly", "yes", "--appendfsync", "always"}, args...)
	switch r.Topology {
	case Sentinel:
		r.sentinel = redistest.StartSentinel(r.tb, args...)
		r.servers = append([]*redistest.Server{r.sentinel.Primary}, r.sentinel.Replicas...)
		for _, s := range r.sentinel.Sentinels {
			r.addrs = append(r.addrs, s.Addr())
		}
		r.retrySoon()
	case Cluster:
		r.cluster = redistest.StartCluster(r.tb, args...)
		r.servers, r.addrs = r.cluster.Nodes(), r.cluster.Addrs()
	case Quorum:
		for range 5 {
			r.servers = append(r.servers, redistest.Start(r.tb, aof...))
		}
	default:
		var s *redistest.Server
		if slices.ContainsFunc(r.Faults, func(f *Fault) bool { return f.Clock }) {
			s, r.clock = redistest.StartOnClock(r.tb, aof...)
		} else {
			s = redistest.Start(r.tb, aof...)
		}
		r.servers = []*redistest.Server{s}
	}
	if len(r.addrs) == 0 {
		for _, s := range r.servers {
			r.addrs = append(r.addrs, s.Addr())
		}
	}
	if r.kind().Fenced || r.kind().Writes || r.kind().Tasks != nil {
		r.store = redistest.Start(r.tb)
	}
	for i := range r.Objects {
		r.objects = append(r.objects, fmt.Sprintf("object-%d", i))
	}
	require.NoError(r.tb, r.prepare())
}

// prepare creates the objects that do not exist.
func (r *Run) prepare() error {
	prepare := r.kind().Prepare
	if prepare == nil {
		return nil
	}
	return r.asClient(func(rdb redis.UniversalClient) error {
		for _, object := range r.objects {
			if err := prepare(r.ctx, rdb, object); err != nil {
				return err
			}
		}
		return nil
	})
}

// asClient calls f with a client like those of the processes.
func (r *Run) asClient(f func(redis.UniversalClient) error) error {
	rdbs := r.Topology.connect(r.addrs, &redistest.FaultDialer{}, 3)
	defer func() {
		for _, rdb := range rdbs {
			_ = rdb.Close()
		}
	}()
	return f(rdbs[0])
}

// inject causes a fault. While it lasts, no client can be expected to get anything.
func (r *Run) inject(f *Fault) {
	from := history.Now()
	effect, err := f.Inject(r)
	require.NoError(r.tb, err, f.Name)
	if r.settle() && !f.Loses && !f.Deposes {
		r.deposed++
	}
	if f.Loses {
		require.NoError(r.tb, r.prepare(), f.Name)
	}
	r.spans = append(r.spans, check.Span{From: from, To: history.Now()})
	if !f.Kills && !f.Stops {
		r.outages = append(r.outages, r.spans[len(r.spans)-1])
	}
	if effect {
		r.effects[f.Name]++
	}
}

// allEffects returns how often each fault took effect, so far.
func (r *Run) allEffects() map[string]int {
	all := maps.Clone(r.effects)
	for _, e := range r.history.Events() {
		if e.Step == history.Effect && e.N > 0 {
			all[e.Note]++
		}
	}
	return all
}

// ineffective returns the faults that have not taken effect yet.
func (r *Run) ineffective() (faults []*Fault) {
	effects := r.allEffects()
	for _, f := range r.Faults {
		if effects[f.Name] == 0 {
			faults = append(faults, f)
		}
	}
	return faults
}

// lostData reports whether Redis may have forgotten what it confirmed.
func (r *Run) lostData() bool { return r.losesData() || r.deposed > 0 }

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
		Process: r.started, Kind: r.Kind, Settings: r.Settings, Topology: r.Topology,
		Addrs: r.addrs, Objects: r.objects, Clients: r.Clients, Callers: r.Callers,
		MaxHold: r.MaxHold, GiveUp: r.GiveUp, Seed: r.Seed + uint64(r.started)*1000,
	}
	if r.draining {
		orders.Clients, orders.Callers, orders.MaxHold, orders.Drain = 1, 0, time.Millisecond, true
	}
	if len(r.Leases) > 0 {
		orders.Lease = r.Leases[r.started%len(r.Leases)]
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

func (c *child) order(o order) error { return json.NewEncoder(c.stdin).Encode(o) }

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
	<-c.ended //nolint:errcheck // the error is that of the kill
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
		if i%4 == 3 && !r.kind().Counting && r.clock == nil {
			require.NoError(r.tb, r.kill(c))
		} else {
			require.NoError(r.tb, c.stdin.Close())
			ending = append(ending, c)
		}
	}
	for _, c := range ending {
		require.NoError(r.tb, <-c.ended, "process %d", c.number)
	}
	if r.kind().Tasks != nil {
		r.draining = true
		require.NoError(r.tb, r.start())
		last := r.children[len(r.children)-1]
		require.NoError(r.tb, last.stdin.Close())
		require.NoError(r.tb, <-last.ended, "the last process")
	}
	r.reading.Wait()
}
