package robustness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Orders are what a process is to do. The parent hands them over in the environment.
type Orders struct {
	Process int
	Kind    string
	Settings
	Topology Topology
	Addrs    []string // of the servers, or of the Sentinels
	Store    string   // the address of the store that compares tokens; may be empty
	Objects  []string
	Clients  int // of the process; each has connections and a queue of its own
	Callers  int // of each client
	MaxHold  time.Duration
	GiveUp   float64 // the share of calls that wait for some milliseconds only
	Seed     uint64
	Drain    bool // serve until the queues are empty
}

// ordersEnv names the variable that makes the test binary a process of a run.
const ordersEnv = "ROBUSTNESS_ORDERS"

// RunProcess runs the clients of a process, and reports whether the environment asks for it.
func RunProcess() bool {
	if runTimersIfAsked() {
		return true
	}
	text := os.Getenv(ordersEnv)
	if text == "" {
		return false
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	redis.SetLogger(silence{})
	var o Orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	p := &process{
		Orders: o, rec: history.NewRecorder(os.Stdout), kind: KindOf(o.Kind), sessions: make(map[*session]struct{}),
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.run()
	return true
}

// silence drops what go-redis logs about connections that faults broke.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// process is one run of RunProcess.
type process struct {
	Orders
	kind   *Kind
	rec    *history.Recorder
	dialer redistest.FaultDialer
	wheel  *wheel.Wheel
	store  *redis.Client
	calls  atomic.Uint64
	ctx    context.Context // ends with the run
	end    context.CancelFunc
	faults sync.WaitGroup

	mu       sync.Mutex
	sessions map[*session]struct{} // that work
}

func (p *process) run() {
	ctx := context.Background()
	p.dialer.Timeout = readTimeout
	if err := p.setUp(); err != nil {
		p.trouble(err)
		return
	}
	go p.obey(os.Stdin)
	var all sync.WaitGroup
	for i := range p.Clients {
		all.Go(func() {
			if err := p.client(ctx, i); err != nil {
				p.trouble(err)
			}
		})
	}
	all.Wait()
	p.faults.Wait()
	if p.store != nil {
		_ = p.store.Close()
	}
	if _, err := p.wheel.Stop(ctx); err != nil {
		p.trouble(err)
	}
	if err := p.leftBehind(); err != nil {
		p.trouble(err)
		return
	}
	p.rec.Record(history.Event{Step: history.Ended})
}

// leftBehind returns an error if a goroutine of the library has outlived its clients.
func (p *process) leftBehind() error {
	return goleak.Find(
		goleak.IgnoreAnyFunction("github.com/cogwheel-go/cogwheel/robustness.(*process).obey"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	)
}

func (p *process) setUp() (err error) {
	if p.Process%2 == 0 {
		p.Skew = 0
	}
	if p.wheel, err = p.newWheel(); err != nil {
		return err
	}
	if p.Store != "" {
		p.store = redis.NewClient(&redis.Options{Addr: p.Store})
	}
	return nil
}

// newWheel makes a wheel on the clock of the process.
func (p *process) newWheel() (*wheel.Wheel, error) {
	opts := []wheel.Option{wheel.WithTickDuration(p.Tick)}
	if p.Skew != 0 {
		opts = append(opts, wheel.WithClock(skewed(p.Skew)))
	}
	return wheel.New(opts...)
}

// skewed is a clock that is wrong by an offset.
type skewed time.Duration

func (s skewed) Now() time.Time                         { return time.Now().Add(time.Duration(s)) }
func (s skewed) After(d time.Duration) <-chan time.Time { return time.After(d) }

func (p *process) trouble(err error) {
	p.rec.Record(history.Event{
		Step: history.Trouble, Client: history.ClientID(p.Process, 0),
		Note: strings.ReplaceAll(err.Error(), "\n", "; "),
	})
}

// obey does what the parent writes, line by line, until it closes the pipe, which ends the run.
func (p *process) obey(from io.Reader) {
	defer p.end()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			p.trouble(err)
			return
		}
		p.faults.Go(func() { p.carryOut(o) })
	}
}

func (p *process) isOver() bool { return p.ctx.Err() != nil }

// client runs a client of the process, and another one in its place each time that it is closed.
func (p *process) client(ctx context.Context, i int) error {
	for generation := 0; ; generation++ {
		s := &session{process: p, number: i + generation*p.Clients, ownWheel: i%2 == 1, end: make(chan struct{})}
		if err := s.run(ctx); err != nil || p.isOver() {
			return err
		}
	}
}

// session is the life of a client, from its making to its Close.
type session struct {
	*process
	number   int
	ownWheel bool // rather than that of the process

	end               chan struct{} // closed when the client is to be closed in the midst of its calls
	ending, stopWheel bool          // under mu
	closed            atomic.Bool
}

func (s *session) id() uint64 { return history.ClientID(s.Process, s.number) }

// closeLimit is far more than a Close may take.
const closeLimit = 30 * time.Second

func (s *session) run(ctx context.Context) (err error) {
	rnd := rand.New(rand.NewPCG(s.Seed, uint64(s.number)))
	retries := []int{-1, 1, 3}[rnd.IntN(3)]
	rdbs := s.Topology.connect(s.Addrs, &s.dialer, cmp.Or(s.Retries, retries))
	defer func() {
		for _, rdb := range rdbs {
			_ = rdb.Close()
		}
	}()
	w := s.wheel
	if s.ownWheel {
		if w, err = s.newWheel(); err != nil {
			return err
		}
		defer func() { _, _ = w.Stop(ctx) }() // a second time if the fault was that
	}
	c, err := s.open(rdbs, w)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for n := range s.Callers {
		once := c.caller(rand.New(rand.NewPCG(s.Seed, uint64(s.number)<<32+uint64(n)+1)))
		all.Go(func() {
			for !s.isOver() && !s.closed.Load() {
				once(ctx)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
	}()
	s.work(true)
	defer s.work(false)
	select {
	case <-ended:
		s.calm()
		// What a release did not reach ends with its lease, if there is one.
		if err := s.close(ctx, c); err != nil && (s.kind.Counting || s.Drain) {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	case <-s.end:
		return s.closeAmidst(ctx, w, c, ended)
	}
}

// client is a client of the library under test.
type client struct {
	caller func(*rand.Rand) func(context.Context) // returns what a caller does again and again
	close  func(context.Context) error
}

// open makes the client of a session.
func (s *session) open(rdbs []redis.UniversalClient, w *wheel.Wheel) (client, error) {
	if s.kind.Limit != nil {
		return s.openLimit(rdbs[0], w)
	}
	if s.kind.Tasks != nil {
		return s.openTasks(rdbs[0], w)
	}
	l, err := s.kind.New(rdbs, w, s.Settings)
	if err != nil {
		return client{}, err
	}
	return client{func(rnd *rand.Rand) func(context.Context) {
		c := &caller{process: s.process, locker: l, id: s.id(), rnd: rnd}
		if s.kind.Reenters {
			c.owner, c.ownerID = &redislock.Owner{}, s.newID()
		}
		return c.once
	}, l.Close}, nil
}

// work says whether the session can be told to end.
func (s *session) work(working bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if working {
		s.sessions[s] = struct{}{}
	} else {
		delete(s.sessions, s)
	}
}

func (s *session) close(ctx context.Context, c client) error {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	return c.close(ctx)
}

// closeAmidst closes the client while its callers wait and hold, which ends both.
func (s *session) closeAmidst(ctx context.Context, w *wheel.Wheel, c client, ended <-chan struct{}) error {
	if s.stopWheel {
		if _, err := w.Stop(ctx); err != nil {
			return err
		}
		s.sleep(100 * time.Millisecond)
	}
	began := time.Now()
	if err := s.close(ctx, c); err != nil && time.Since(began) >= closeLimit { // other errors may be due to a fault
		return fmt.Errorf("close in the midst of calls: %w", err)
	}
	s.closed.Store(true)
	s.rec.Record(history.Event{Step: history.Closed, Client: s.id()})
	waiting, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	select {
	case <-ended:
		return nil
	case <-waiting.Done():
		return errors.New("calls go on after the Close of their client")
	}
}

// caller is a goroutine that acquires, relies on and releases objects.
type caller struct {
	*process
	locker Locker
	id     uint64
	rnd    *rand.Rand

	owner   *redislock.Owner // nil unless the kind is re-entrant
	ownerID uint64
}

// newID returns a number that no other process of the run has.
func (p *process) newID() uint64 { return uint64(p.Process)<<40 + p.calls.Add(1) }

// once makes one call and relies on what it got.
func (c *caller) once(ctx context.Context) {
	call := history.Event{
		Step: history.Called, ID: c.newID(), Client: c.id, Owner: c.ownerID,
		Object: c.Objects[c.rnd.IntN(len(c.Objects))], N: 1,
		Shared: c.kind.Shared && c.rnd.IntN(4) > 0, Try: c.rnd.IntN(5) == 0,
	}
	if c.kind.Capacity > 1 && c.rnd.IntN(6) == 0 {
		call.N += c.rnd.Int64N(c.kind.Capacity)
	}
	held, ok := c.acquire(ctx, call)
	if !ok {
		c.pause(ctx, 1+c.rnd.IntN(10))
		return
	}
	c.rely(ctx, call, held)
	for c.kind.Reenters && c.rnd.IntN(2) == 0 {
		inner := call
		inner.ID, inner.Try = c.newID(), c.rnd.IntN(2) == 0
		if again, ok := c.acquire(ctx, inner); ok {
			c.rely(ctx, inner, again)
			c.release(ctx, inner.ID, again)
		}
		c.rely(ctx, call, held) // the release of the inner hold left it
	}
	c.release(ctx, call.ID, held)
	c.pause(ctx, c.rnd.IntN(4))
}

// acquire makes a call.
func (c *caller) acquire(ctx context.Context, call history.Event) (Hold, bool) {
	patience := 10 * time.Second
	if c.rnd.Float64() < c.GiveUp {
		patience = time.Duration(1+c.rnd.IntN(30)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.rec.Record(call)
	held, err := c.locker.Acquire(ctx, Ask{
		Object: call.Object, N: call.N, Shared: call.Shared, Try: call.Try, Owner: c.owner,
	})
	result := history.Event{ID: call.ID}
	switch {
	case err == nil:
		result.Step, result.Token = history.Granted, held.Token()
	case errors.Is(err, ErrRefused):
		result.Step = history.Refused
	default:
		result.Step, result.Note = history.Failed, err.Error()
	}
	c.rec.Record(result)
	return held, err == nil
}

func (c *caller) pause(ctx context.Context, milliseconds int) {
	_ = c.wheel.Sleep(ctx, time.Duration(milliseconds)*time.Millisecond) // ctx does not end
}

// rely records every few milliseconds that the client relies on the hold. It reads the clock before it looks
// whether the hold is valid: a hold that is found valid was valid at that time.
func (c *caller) rely(ctx context.Context, call history.Event, held Hold) {
	patience := time.Duration(c.rnd.Int64N(int64(c.MaxHold)))
	if c.rnd.IntN(20) == 0 && !c.kind.Counting {
		patience += c.Lease * 3 / 2 // needs renewals
	}
	writes := c.store != nil && (held.Token() > 0 || c.kind.Writes) && c.rnd.IntN(3) == 0
	for began := history.Now(); ; {
		now := history.Now()
		if !held.Valid() {
			break
		}
		c.rec.Record(history.Event{Step: history.Relied, ID: call.ID, At: now})
		if writes {
			c.write(ctx, call, held.Token()) // a process that is stopped in between writes too late
		}
		if time.Duration(now-began) > patience || c.isOver() {
			break
		}
		select {
		case <-held.Told():
		case <-time.After(3 * time.Millisecond):
		}
	}
	if told := held.Told(); told != nil {
		select {
		case <-told:
			c.rec.Record(history.Event{Step: history.Told, ID: call.ID})
			if writes && held.Token() > 0 {
				c.write(ctx, call, held.Token()) // as a client does that does not look
			}
		default:
		}
	}
}

// storeWrite accepts a write whose token is at least the highest so far.
var storeWrite = redis.NewScript(`
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
local highest = tonumber(redis.call('HGET', KEYS[1], 'token') or 0)
if tonumber(ARGV[1]) < highest then
	return {seq, 0}
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return {seq, 1}`)

func (c *caller) write(ctx context.Context, call history.Event, token int64) {
	reply, err := storeWrite.Run(ctx, c.store, []string{call.Object}, token).Int64Slice()
	if err != nil {
		c.trouble(fmt.Errorf("the store: %w", err))
		return
	}
	e := history.Event{Step: history.Rejected, ID: call.ID, Seq: reply[0]}
	if reply[1] == 1 {
		e.Step = history.Wrote
	}
	c.rec.Record(e)
}

func (c *caller) release(ctx context.Context, id uint64, held Hold) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c.rec.Record(history.Event{Step: history.Release, ID: id})
	step, err := held.Release(ctx)
	e := history.Event{Step: step, ID: id}
	if err != nil {
		e.Note = err.Error()
	}
	c.rec.Record(e)
}
