package sim

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// process is a client process: a wheel, a redis client, and a client of the library for each kind of object.
type process struct {
	world  *world
	number int // in the history; each process has another one
	link   *link
	clock  *clock
	wheel  *wheel.Wheel
	rdb    redis.UniversalClient
	panics panics

	lockers map[string]robustness.Locker
	limits  *ratelimit.Client
	delays  *delay.Client

	mu     sync.Mutex
	secret string // the password that it knows
	ended  bool   // by a fault
	ending bool   // nothing new is asked of it
	dead   bool   // nothing that it does is seen
}

// pendingTimeouts is the limit of the user's timers on each wheel, in a schedule that fills one.
const pendingTimeouts = 2000

func (w *world) newProcess() (*process, error) {
	w.mu.Lock()
	w.started++
	p := &process{world: w, number: w.started, lockers: make(map[string]robustness.Locker)}
	w.mu.Unlock()
	p.link = w.net.newLink()
	w.mu.Lock()
	w.links[p.number] = p.link.number
	w.mu.Unlock()
	p.clock = &clock{link: p.link, start: w.start.Add(-time.Hour)}
	opts := []wheel.Option{wheel.WithTickDuration(w.Tick)}
	if w.has("process stands still", "wall clock steps") {
		opts = append(opts, wheel.WithClock(p.clock))
	}
	if w.has("wheel full") {
		opts = append(opts, wheel.WithMaxPendingTimeouts(pendingTimeouts))
	}
	var err error
	if p.wheel, err = wheel.New(opts...); err != nil {
		return nil, err
	}
	p.rdb = p.connect()
	if w.has("hook panics") {
		p.rdb.AddHook(&p.panics)
	}
	return p, p.open()
}

// connect makes the redis client.
func (p *process) connect() redis.UniversalClient {
	w := p.world
	const poolSize = 1000 // a caller that waits for a connection would use a timer that go-redis shares between bubbles
	unnotified := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	var login func() (user, password string)
	life := time.Duration(0)
	if w.has(passwordRotated) {
		p.learn()
		login, life = p.login, shortLife
	}
	if p.link.number == 0 || w.Client == plainClient {
		return redis.NewClient(&redis.Options{
			Addr: serverAddr.String(), Dialer: p.link.dial, MaxRetries: w.Retries, CredentialsProvider: login,
			ReadTimeout: w.Timeout, WriteTimeout: w.Timeout, DialTimeout: w.Timeout,
			PoolSize: poolSize, DisableIdentity: true, MaintNotificationsConfig: unnotified, ConnMaxLifetime: life,
		})
	}
	if w.Client == failoverCluster {
		// NewFailoverClusterClient makes such a client, with a subscription that outlives it.
		cluster := redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
				if err := wait(ctx, 2*w.Most); err != nil {
					return nil, err
				}
				nodes := []redis.ClusterNode{{Addr: w.sentinel.named().String()}, {Addr: replicaAddr.String()}}
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: nodes}}, nil
			},
			Dialer: p.link.dial, MaxRedirects: w.Retries,
			ReadTimeout: w.Timeout, WriteTimeout: w.Timeout, DialTimeout: w.Timeout,
			PoolSize: poolSize, DisableIdentity: true, MaintNotificationsConfig: unnotified,
		})
		w.sentinel.onSwitch(func() {
			time.Sleep(w.Most)
			cluster.ReloadState(context.Background())
		})
		cluster.Ping(context.Background()) // it knows the commands then: it holds a mutex while it asks for them
		return cluster
	}
	c := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: primaryName, SentinelAddrs: []string{sentinelAddr.String()},
		Dialer: p.link.dial, MaxRetries: w.Retries,
		ReadTimeout: w.Timeout, WriteTimeout: w.Timeout, DialTimeout: w.Timeout,
		PoolSize: poolSize, DisableIdentity: true,
	})
	c.Ping(context.Background()) // it has found the Sentinel then: it holds a mutex while it looks for one
	return c
}

// wait waits for the answer of a Sentinel.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// login returns the user and the password for new connections.
func (p *process) login() (user, password string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return "default", p.secret
}

// learn tells the process the password of the server.
func (p *process) learn() {
	secret := p.world.server.secret()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secret = secret
}

// open makes a client for each kind of object.
func (p *process) open() (err error) {
	for _, o := range p.world.Objects {
		switch {
		case isLimit(o.Kind) && p.limits == nil:
			p.limits, err = ratelimit.New(p.rdb, ratelimit.WithWheel(p.wheel), ratelimit.WithPolicy(p.world.policy()),
				ratelimit.WithHooks(ratelimit.Hooks{Allowed: noteResult, Denied: noteResult}))
		case isTasks(o.Kind) && p.delays == nil:
			p.delays, err = delay.New(p.rdb, delay.WithWheel(p.wheel), delay.WithPoll(p.world.Poll))
		case !isLimit(o.Kind) && !isTasks(o.Kind) && p.lockers[o.Kind] == nil:
			s := robustness.Settings{Lease: p.world.Lease, Poll: p.world.Poll, Tick: p.world.Tick}
			s.Pause = s.Poll / 2 // or waiters of a lock that stays locked would keep the server busy
			if p.number%2 == 1 {
				s.Skew = -s.Lease * 4 / 5 // which only controls look at
			}
			p.lockers[o.Kind], err = robustness.KindOf(o.Kind).New([]redis.UniversalClient{p.rdb}, p.wheel, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// awake waits while the process stands still, and reports whether it lives.
func (p *process) awake() bool {
	for {
		if left := p.link.standsStill(); left > 0 {
			time.Sleep(left)
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.dead
	}
}

// isUp reports whether the process takes on operations.
func (p *process) isUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead && !p.ending
}

// die has nothing that the process does seen from now on.
func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead, p.ending = true, true
}

// close closes the clients, and then the rest. It records when each Close returned.
func (p *process) close() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var all sync.WaitGroup
	closing := func(what string, f func(context.Context) error) {
		all.Go(func() {
			began := time.Now()
			err := f(ctx)
			p.world.closed(p, what, time.Since(began), err)
		})
	}
	for kind, l := range p.lockers {
		closing(kind, l.Close)
	}
	if p.limits != nil {
		closing("limits", p.limits.Close)
	}
	if p.delays != nil {
		closing(tasksKind, p.delays.Close)
	}
	all.Wait()
	p.world.record(p, history.Event{Step: history.Closed, Client: history.ClientID(p.number, 0)})
}

// closeLimit is far longer than a Close may take.
const closeLimit = 10 * time.Minute

// shut ends what the clients used.
func (p *process) shut() {
	p.stopWheel()
	_ = p.rdb.Close()
}

func (p *process) stopWheel() {
	_, _ = p.wheel.Stop(context.Background())
}

// fillWheel makes the wheel refuse timers of the user for a while.
func (p *process) fillWheel(d time.Duration) (full bool) {
	for range 2 * pendingTimeouts {
		if _, err := p.wheel.AfterFunc(d, func() {}); err != nil {
			return true
		}
	}
	return false
}

// panics is a go-redis hook that panics for some calls, as a user's hook may.
type panics struct {
	mu   sync.Mutex
	left int
	met  func()
}

// hookPanic is the value of such a panic.
const hookPanic = "a hook panics"

func (p *panics) arm(n int, met func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.met = n, met
}

func (p *panics) maybe() {
	p.mu.Lock()
	armed := p.left > 0
	if armed {
		p.left--
		p.met()
	}
	p.mu.Unlock()
	if armed {
		panic(hookPanic)
	}
}

// DialHook changes nothing.
func (p *panics) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook panics when it is time.
func (p *panics) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.maybe()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook panics when it is time.
func (p *panics) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.maybe()
		return next(ctx, cmds)
	}
}
