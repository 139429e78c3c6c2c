package ratelimit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The replays in this file compare what callers were granted with the definition of each algorithm. The callers
// are several processes that ask, wait, reserve and give up, while the limit rises and falls. Callers and Redis
// share the clock of the machine, so the replay knows the interval in which Redis decided each grant, and not the
// instant, which the algorithms of package oracle need. So it looks for grants that cannot be, whatever the instants.

// The times of a contest on a machine that is not slow.
const (
	contestPer   = 200 * time.Millisecond
	contestPhase = 450 * time.Millisecond // for which a limit is in force
	// All callers ask at once for contestRush, and then none for contestLull, in which used permits return.
	contestRush, contestLull = 500 * time.Millisecond, 300 * time.Millisecond
)

// admission is a grant and the limit of its request. It is fresh if its process knew nothing of the key: then Redis
// charged it between call and ret. Others may have been served by permits that were charged earlier, for a waiter of
// the same limit that has left.
type admission struct {
	oracle.Grant
	limit ratelimit.Limit
	fresh bool
}

// observedWindow is what replays know of one window by Redis's clock, in Unix ns: it surely began by begin[1] and
// not before begin[0], and ended likewise.
type observedWindow struct{ begin, end [2]int64 }

// change is a SetRate from call to ret.
type change struct {
	call, ret int64
	limit     ratelimit.Limit
}

// record is what one run did to one limit.
type record struct {
	admissions []admission
	windows    []observedWindow
	changes    []change
	per        time.Duration // of the limits
}

// windowExcess returns by how many permits the record is above the definition of fixed windows: a window holds at
// most the limit, and a request is charged only if it and all grants before it in its window are within its limit.
func (r *record) windowExcess() float64 {
	inside := func(g admission, from, to observedWindow) bool {
		return g.Call >= from.begin[1] && g.Return <= to.end[0]
	}
	worst := -1.0
	for i, first := range r.windows {
		may := int64(0)
		for j := i; j < min(i+4, len(r.windows)); j++ {
			last := r.windows[j]
			if j > i && last.begin[1]-r.windows[j-1].end[0] >= int64(r.per) {
				break // another window may have been there that was not observed
			}
			held, most := int64(0), int64(0)
			for _, g := range r.admissions {
				if inside(g, first, last) {
					held += g.N
				}
				if g.Call <= last.end[1] && g.Return >= last.begin[0] {
					most = max(most, g.limit.Rate)
				}
			}
			may += most
			worst = max(worst, float64(held-may))
		}
		for _, g := range r.admissions {
			if !g.fresh || !inside(g, first, first) {
				continue
			}
			held := g.N
			for _, before := range r.admissions {
				if inside(before, first, first) && before.Return <= g.Call {
					held += before.N
				}
			}
			worst = max(worst, float64(held-g.limit.Rate))
		}
	}
	return worst
}

// gcraExcess returns by how many permits of the largest limit the record is above the definition of GCRA: each limit
// holds for the requests under it, and everything together takes no more time than there was, and one burst.
func (r *record) gcraExcess() float64 {
	worst, longest := -1.0, time.Duration(0)
	under := map[ratelimit.Limit][]oracle.Grant{}
	var all []oracle.Grant
	for _, g := range r.admissions {
		under[g.limit] = append(under[g.limit], g.Grant)
		worth := oracle.Grant{Call: g.Call, Return: g.Return, N: g.N * int64(g.limit.Per) / g.limit.Rate}
		all = append(all, worth)
		longest = max(longest, time.Duration(g.limit.Burst*int64(g.limit.Per)/g.limit.Rate))
	}
	for limit, grants := range under {
		worst = max(worst, oracle.Excess(grants, oracle.Limit(limit).BucketBound()))
	}
	tooLong := oracle.Excess(all, func(d time.Duration) float64 { return float64(longest + d) })
	return max(worst, tooLong*60/float64(r.per))
}

// logExcess returns by how many permits the record is above the definition of the sliding log: no interval of a Per
// holds more than the highest rate, and a request is charged only if it and all grants of the Per before it are
// within the rate that Redis has then.
func (r *record) logExcess() float64 {
	var all []oracle.Grant
	highest := ratelimit.Limit{}
	for _, c := range r.changes {
		if c.limit.Rate > highest.Rate {
			highest = c.limit
		}
	}
	for _, g := range r.admissions {
		all = append(all, g.Grant)
	}
	worst := oracle.Excess(all, oracle.Limit(highest).LogBound())
	for _, g := range r.admissions {
		limit, known := r.inForce(g.Call, g.Return)
		if !known || !g.fresh {
			continue
		}
		held := g.N
		for _, before := range r.admissions {
			if before.Return <= g.Call && before.Call > g.Return-int64(r.per) {
				held += before.N
			}
		}
		worst = max(worst, float64(held-limit.Rate))
	}
	return worst
}

// slidingExcess returns by how many permits the record is above the definition of sliding windows: each limit holds for
// its requests as GCRA does with a burst of Rate, and a request is charged only if it, all grants before it in its window and
// the share of those in the window before are within its limit.
func (r *record) slidingExcess() float64 {
	per, worst := int64(r.per), -1.0
	under := map[ratelimit.Limit][]oracle.Grant{}
	for _, g := range r.admissions {
		under[g.limit] = append(under[g.limit], g.Grant)
		if !g.fresh || g.Call/per != g.Return/per {
			continue
		}
		held, overlap := float64(g.N), 1-float64(g.Return%per)/float64(per)
		for _, before := range r.admissions {
			switch at := before.Call / per; {
			case before.Return > g.Call || at != before.Return/per:
			case at == g.Call/per:
				held += float64(before.N)
			case at == g.Call/per-1:
				held += float64(before.N) * overlap
			}
		}
		worst = max(worst, held-float64(g.limit.Rate))
	}
	for limit, grants := range under {
		worst = max(worst, oracle.Excess(grants, oracle.Limit(limit).BucketBound()))
	}
	return worst
}

// inForce returns the limit that Redis had from one instant to another.
func (r *record) inForce(from, to int64) (ratelimit.Limit, bool) {
	for i, c := range r.changes {
		if c.ret <= from && (i == len(r.changes)-1 || to <= r.changes[i+1].call) {
			return c.limit, true
		}
	}
	return ratelimit.Limit{}, false
}

// contestWay is one way to ask for permits of some limits of a contest.
type contestWay struct {
	limits  []string // that it charges
	allow   func(ctx context.Context, limit ratelimit.Limit, n int64) (ratelimit.Result, error)
	wait    func(ctx context.Context, limit ratelimit.Limit, n int64) error
	reserve func(ctx context.Context, limit ratelimit.Limit, n int64) (*ratelimit.Reservation, error) // or nil
}

// contest is several processes that ask for the same limits.
type contest struct {
	limits   []string // "GCRA", "window", "sliding", "log": asked for alone, and together if there are several
	wide     string   // one of them, which has ten times the limit
	constant bool     // the first limit stays in force
	settled  bool     // in place of waiters, whom permits of windows go to first, more callers settle
	mutation *mutation
	lasts    time.Duration
	slower   int // by how much all takes longer, for slow machines; 0 is 1
}

// scaled returns how long something takes in this contest.
func (s contest) scaled(d time.Duration) time.Duration { return d * time.Duration(max(1, s.slower)) }

// inTurn returns the limits that are in force one after the other.
func (s contest) inTurn(at int) ratelimit.Limit {
	rate := []int64{40, 10, 60, 20}[at%4]
	return ratelimit.Limit{Rate: rate, Per: s.scaled(contestPer), Burst: rate}
}

// ways returns the ways to ask with a client.
func (s contest) ways(c *ratelimit.Client, name string) []contestWay {
	gcra := c.Limiter("gcra", s.inTurn(0), ratelimit.WithHashTag(name))
	windows := c.Limiter("window", s.inTurn(0), ratelimit.WithHashTag(name), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	sliding := c.Limiter("sliding", s.inTurn(0), ratelimit.WithHashTag(name), bySliding)
	l := c.StoredLimiter("log:{" + name + "}")
	limiter := func(what string, k *ratelimit.Limiter) contestWay {
		return contestWay{
			limits: []string{what},
			allow: func(ctx context.Context, limit ratelimit.Limit, n int64) (ratelimit.Result, error) {
				return k.With(limit).AllowN(ctx, "k", n)
			},
			wait: func(ctx context.Context, limit ratelimit.Limit, n int64) error {
				return k.With(limit).WaitN(ctx, "k", n)
			},
			reserve: func(ctx context.Context, limit ratelimit.Limit, n int64) (*ratelimit.Reservation, error) {
				return k.With(s.limit(what, limit)).Reserve(ctx, "k", n)
			},
		}
	}
	of := map[string]contestWay{
		"GCRA":    limiter("GCRA", gcra),
		"window":  limiter("window", windows),
		"sliding": limiter("sliding", sliding),
		"log": {
			limits: []string{"log"},
			allow: func(ctx context.Context, _ ratelimit.Limit, n int64) (ratelimit.Result, error) {
				return l.AllowN(ctx, n)
			},
			wait: func(ctx context.Context, _ ratelimit.Limit, n int64) error { return l.WaitN(ctx, n) },
			reserve: func(ctx context.Context, _ ratelimit.Limit, n int64) (*ratelimit.Reservation, error) {
				return l.Reserve(ctx, n)
			},
		},
	}
	var ways []contestWay
	for _, what := range s.limits {
		ways = append(ways, of[what])
	}
	if len(s.limits) == 1 {
		return ways
	}
	all := func(limit ratelimit.Limit) *ratelimit.All {
		part := map[string]ratelimit.Part{
			"GCRA":    gcra.With(s.limit("GCRA", limit)).Part("k"),
			"window":  windows.With(s.limit("window", limit)).Part("k"),
			"sliding": sliding.With(s.limit("sliding", limit)).Part("k"),
		}
		var parts []ratelimit.Part
		for _, what := range s.limits {
			parts = append(parts, part[what])
		}
		return c.All(parts...)
	}
	return append(ways, contestWay{
		limits: s.limits,
		allow: func(ctx context.Context, limit ratelimit.Limit, n int64) (ratelimit.Result, error) {
			return all(limit).AllowN(ctx, n)
		},
		wait: func(ctx context.Context, limit ratelimit.Limit, n int64) error { return all(limit).WaitN(ctx, n) },
		reserve: func(ctx context.Context, limit ratelimit.Limit, n int64) (*ratelimit.Reservation, error) {
			r, err := all(limit).TryReserve(ctx, n)
			if err == nil && !r.Allowed {
				err = ratelimit.ErrWouldExceedDeadline
			}
			return r.Reservation, err
		},
	})
}

// limit returns that of a kind while the given one is in force.
func (s contest) limit(what string, limit ratelimit.Limit) ratelimit.Limit {
	if what == s.wide {
		limit.Rate, limit.Burst = 10*limit.Rate, 10*limit.Burst
	}
	return limit
}

// contestRun is a contest while it runs.
type contestRun struct {
	contest

	t          *testing.T
	w          *wheel.Wheel
	began, end time.Time
	phase      atomic.Int64

	mu      sync.Mutex
	records map[string]*record
}

func (r *contestRun) current() ratelimit.Limit {
	return r.inTurn(int(r.phase.Load()))
}

// going reports whether callers go on, after the lull if there is one.
func (r *contestRun) going() bool {
	rush, lull := r.scaled(contestRush), r.scaled(contestLull)
	if at := time.Since(r.began) % (rush + lull); at > rush {
		r.pause(rush + lull - at)
	}
	return time.Now().Before(r.end)
}

func (r *contestRun) pause(d time.Duration) {
	_ = r.w.Sleep(r.t.Context(), max(0, min(d, time.Until(r.end))))
}

// note notes a grant that was asked for at call and has come now.
func (r *contestRun) note(by contestWay, call time.Time, n int64, limit ratelimit.Limit, fresh bool) {
	g := oracle.Between(call, time.Now(), n)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, what := range by.limits {
		r.records[what].admissions = append(r.records[what].admissions, admission{g, r.limit(what, limit), fresh})
	}
}

// allowing asks, and comes back when it was told to.
func (r *contestRun) allowing(way contestWay, rng *rand.Rand) {
	for r.going() {
		limit, n, call := r.current(), 1+rng.Int64N(5), time.Now()
		switch result, err := way.allow(r.t.Context(), limit, n); {
		case r.failed(err):
			r.pause(10 * time.Millisecond)
		case result.Allowed:
			r.note(way, call, n, limit, false)
		default:
			r.pause(result.RetryAfter)
		}
	}
}

// waiting waits, and sometimes gives up.
func (r *contestRun) waiting(way contestWay, rng *rand.Rand) {
	for r.going() {
		limit, n, call := r.current(), 1+rng.Int64N(3), time.Now()
		ctx, cancel := context.WithCancel(r.t.Context())
		timer, err := r.w.AfterFunc(time.Duration(rng.Int64N(int64(r.scaled(contestPer)))), cancel)
		if err != nil {
			r.t.Error(err)
		}
		err = way.wait(ctx, limit, n)
		timer.Stop()
		cancel()
		if err == nil {
			r.note(way, call, n, limit, false)
		} else if !errors.Is(err, context.Canceled) {
			r.t.Error(err)
			return
		}
	}
}

// failed reports whether a call failed. In a contest of callers who settle, replies are lost and contexts end.
func (r *contestRun) failed(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ratelimit.ErrWouldExceedDeadline):
	case r.settled && (errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)):
	default:
		r.t.Error(err)
	}
	return true
}

// hurried returns a context that ends soon in one of eight calls of a contest of callers who settle.
func (r *contestRun) hurried(rng *rand.Rand) (context.Context, context.CancelFunc) {
	if r.settled && rng.IntN(8) == 0 {
		return context.WithTimeout(r.t.Context(), time.Duration(rng.Int64N(int64(r.scaled(8*time.Millisecond)))))
	}
	return r.t.Context(), func() {}
}

// reserve makes a reservation, or waits a little if there is none.
func (r *contestRun) reserve(way contestWay, limit ratelimit.Limit, n int64, rng *rand.Rand) *ratelimit.Reservation {
	ctx, cancel := r.hurried(rng)
	defer cancel()
	reservation, err := way.reserve(ctx, limit, n)
	if r.failed(err) {
		r.pause(10 * time.Millisecond)
		return nil
	}
	return reservation
}

// reserving reserves, and sometimes cancels.
func (r *contestRun) reserving(way contestWay, rng *rand.Rand) {
	for r.going() {
		limit, call := r.current(), time.Now()
		reservation := r.reserve(way, limit, 1, rng)
		switch {
		case reservation == nil:
			continue
		case reservation.Delay() > r.scaled(contestPer)/4 || rng.IntN(3) == 0:
			ctx, cancel := r.hurried(rng)
			_, err := reservation.Cancel(ctx)
			cancel()
			r.failed(err)
			r.pause(20 * time.Millisecond)
			continue
		case r.w.Sleep(r.t.Context(), reservation.Delay()) == nil:
			r.note(way, call, 1, limit, false)
		}
		r.pause(10 * time.Millisecond)
	}
}

// settling reserves more than it uses, works for a while, and settles.
func (r *contestRun) settling(way contestWay, rng *rand.Rand) {
	for r.going() {
		limit, n, call := r.current(), 1+rng.Int64N(8), time.Now()
		reservation := r.reserve(way, limit, n, rng)
		if reservation == nil {
			continue
		}
		used := rng.Int64N(n + 1)
		if err := reservation.Wait(r.t.Context()); err != nil {
			r.t.Error(err)
		}
		if used > 0 {
			r.note(way, call, used, limit, false)
		}
		works := contestPer / 8
		if way.limits[0] != "GCRA" && rng.IntN(4) == 0 {
			works = 2 * contestPer // into the next windows
		}
		r.pause(time.Duration(rng.Int64N(int64(r.scaled(works)))))
		ctx, cancel := r.hurried(rng)
		err := reservation.Settle(ctx, slices.Repeat([]int64{used}, len(way.limits))...)
		cancel()
		if r.failed(err) && rng.IntN(2) == 0 {
			r.failed(reservation.Settle(r.t.Context(), slices.Repeat([]int64{used}, len(way.limits))...))
		}
	}
}

// arriving asks in the name of processes that know nothing yet.
func (r *contestRun) arriving(newWay func() (contestWay, func()), rng *rand.Rand) {
	for r.going() {
		way, done := newWay()
		limit, n, call := r.current(), 1+rng.Int64N(10), time.Now()
		result, err := way.allow(r.t.Context(), limit, n)
		if !r.failed(err) && result.Allowed {
			r.note(way, call, n, limit, true)
		}
		done()
		r.pause(time.Millisecond)
	}
}

// observing notes the windows of a key.
func (r *contestRun) observing(rdb *redis.Client, key string) {
	const look = `local left, time = redis.call('PTTL', KEYS[1]), redis.call('TIME')
return {left, time[1] * 1000 + math.floor(time[2] / 1000)}`
	const ms = int64(time.Millisecond)
	blur := int64(r.scaled(4 * time.Millisecond)) // a look that took longer is left out
	windows := &r.records["window"].windows
	for ; time.Now().Before(r.end); r.pause(2 * time.Millisecond) {
		sent := time.Now().UnixNano()
		found, err := rdb.Eval(r.t.Context(), look, []string{key}).Int64Slice()
		if err != nil {
			r.t.Error(err)
			return
		}
		left := found[0] * ms
		from, to := sent/ms*ms+left, (found[1]+1)*ms+left // Redis looked at its clock between the two
		if left <= 0 || to-from > blur {
			continue
		}
		per := int64(r.scaled(contestPer))
		w := observedWindow{begin: [2]int64{from - per, to - per}, end: [2]int64{from, to}}
		if last := len(*windows) - 1; last >= 0 && from-(*windows)[last].end[1] < blur+ms {
			old := (*windows)[last] // the two intervals overlap, and both hold the instant
			w.begin = [2]int64{max(w.begin[0], old.begin[0]), min(w.begin[1], old.begin[1])}
			w.end = [2]int64{max(w.end[0], old.end[0]), min(w.end[1], old.end[1])}
			(*windows)[last] = w
		} else {
			*windows = append(*windows, w)
		}
	}
}

// changing sets the limits in turn.
func (r *contestRun) changing(s contest, l *ratelimit.StoredLimiter) {
	for at := 0; time.Now().Before(r.end); at++ {
		limit := s.inTurn(at)
		r.phase.Store(int64(at))
		if slices.Contains(s.limits, "log") {
			c := change{call: time.Now().UnixNano(), limit: s.limit("log", limit)}
			if err := l.SetRate(r.t.Context(), c.limit, ratelimit.WithState()); err != nil {
				r.t.Error(err)
			}
			c.ret = time.Now().UnixNano()
			r.mu.Lock()
			r.records["log"].changes = append(r.records["log"].changes, c)
			r.mu.Unlock()
		}
		if s.constant {
			return
		}
		r.pause(s.scaled(contestPhase))
	}
}

// run starts all callers, and returns the records when the contest is over.
func (s contest) run(t *testing.T) map[string]*record {
	t.Helper()
	const processes = 3
	name, server := redistest.Name(t), redistest.Shared(t)
	connect := func() (*redis.Client, *ratelimit.Client) {
		d := &redistest.FaultDialer{}
		rdb := server.Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
		if s.mutation != nil {
			rdb.AddHook(s.mutation)
		}
		opts := []ratelimit.Option{}
		if s.settled {
			opts = append(opts, ratelimit.WithTimeout(time.Second), ratelimit.WithBreaker(1000, time.Second))
			for i := range 40 {
				d.LoseReply("evalsha", 20+30*i, redistest.Cut)
			}
		}
		c := newClient(t, rdb, opts...)
		d.Delay(0, time.Millisecond)
		return rdb, c
	}
	r := &contestRun{contest: s, t: t, w: newWheel(t), records: map[string]*record{}}
	for _, what := range s.limits {
		r.records[what] = &record{per: s.scaled(contestPer)}
	}
	rdb, first := connect()
	l := first.StoredLimiter("log:{" + name + "}")
	require.NoError(t, l.SetRate(t.Context(), s.inTurn(0)))
	r.began = time.Now()
	r.end = r.began.Add(s.lasts)
	var all sync.WaitGroup
	all.Go(func() { r.changing(s, l) })
	for id := range uint64(processes) {
		rdb, c := connect()
		for at, way := range s.ways(c, name) {
			rng := func(role uint64) *rand.Rand { return rand.New(rand.NewPCG(id, 10*uint64(at)+role)) }
			all.Go(func() { r.allowing(way, rng(0)) })
			for role := uint64(1); role <= 2 && !s.settled; role++ {
				all.Go(func() { r.waiting(way, rng(role)) })
			}
			all.Go(func() { r.reserving(way, rng(3)) })
			roles := uint64(3)
			switch {
			case s.settled:
				roles = 12
			case s.mutation != nil:
				roles = 0 // they take permits that would show it
			}
			for role := range roles {
				all.Go(func() { r.settling(way, rng(5+role)) })
			}
			all.Go(func() {
				r.arriving(func() (contestWay, func()) {
					c, err := ratelimit.New(rdb, ratelimit.WithWheel(r.w), ratelimit.WithTimeout(patience))
					if err != nil {
						t.Error(err)
					}
					return s.ways(c, name)[at], func() { _ = c.Close(t.Context()) }
				}, rng(4))
			})
		}
	}
	if slices.Contains(s.limits, "window") {
		all.Go(func() { r.observing(rdb, ratelimit.TaggedKey("window", name, "k", ratelimit.FixedWindow)) })
	}
	all.Wait()
	return r.records
}

// excess returns the worst excess of a run over the definitions.
func (s contest) excess(t *testing.T) float64 {
	t.Helper()
	worst := -1.0
	for what, r := range s.run(t) {
		found := map[string]func() float64{
			"GCRA": r.gcraExcess, "window": r.windowExcess, "sliding": r.slidingExcess, "log": r.logExcess,
		}[what]()
		t.Logf("%s: %d grants in %d windows, excess %.0f", what, len(r.admissions), len(r.windows), found)
		require.NotEmpty(t, r.admissions)
		worst = max(worst, found)
	}
	return worst
}

// mutation sends another text in place of a script.
type mutation struct {
	script *scripts.Script
	text   string
}

// mutate returns a script with something in it replaced, which must be there.
func mutate(t *testing.T, s *scripts.Script, from, to string) *mutation {
	t.Helper()
	require.Contains(t, s.Source(), from)
	return &mutation{s, strings.Replace(s.Source(), from, to, 1)}
}

func (m *mutation) replace(cmd redis.Cmder) {
	if args := cmd.Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == m.script.SHA() {
		args[0], args[1] = "eval", m.text
	}
}

func (m *mutation) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *mutation) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			m.replace(cmd)
		}
		return next(ctx, cmds)
	}
}

func (m *mutation) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.replace(cmd)
		return next(ctx, cmd)
	}
}

// contests are all algorithms, alone and together.
var contests = map[string]contest{
	"GCRA":                     {limits: []string{"GCRA"}},
	"fixed windows":            {limits: []string{"window"}},
	"sliding windows":          {limits: []string{"sliding"}},
	"a sliding log":            {limits: []string{"log"}},
	"GCRA, settled":            {limits: []string{"GCRA"}, settled: true},
	"a sliding log, settled":   {limits: []string{"log"}, settled: true},
	"fixed windows, settled":   {limits: []string{"window"}, settled: true},
	"sliding windows, settled": {limits: []string{"sliding"}, settled: true},
	"all of them":              {limits: []string{"GCRA", "window", "sliding"}},
	"all of them, settled":     {limits: []string{"GCRA", "window", "sliding"}, settled: true},
	"sliding windows, and GCRA that denies nothing": {limits: []string{"sliding", "GCRA"}, wide: "GCRA"},
	"fixed windows, and GCRA that denies nothing":   {limits: []string{"window", "GCRA"}, wide: "GCRA"},
	"GCRA, and fixed windows that deny nothing":     {limits: []string{"GCRA", "window"}, wide: "window"},
}

// Guarantees: Q1, Q22.
func TestReplay_EveryAlgorithmKeepsItsDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, c := range contests {
		for how, constant := range map[string]bool{"a constant limit": true, "a limit that rises and falls": false} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				s := c
				s.constant, s.lasts = constant, fleetDuration()
				require.LessOrEqual(t, s.excess(t), 0.0)
			})
		}
	}
}

// The negative controls: the replay finds an excess of each algorithm that is broken somewhere.
func TestReplay_FindsAnAlgorithmThatBreaksItsDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, c := range map[string]struct {
		contest  contest
		script   *scripts.Script
		from, to string
	}{
		"GCRA grants half a second too early": {
			contest{limits: []string{"GCRA"}, constant: true},
			scripts.RateGCRA,
			"local zone_us = now + full_us", "local zone_us = now + full_us + 500000",
		},
		"GCRA forgets what was used under another limit": {
			contest{limits: []string{"GCRA"}},
			scripts.RateGCRA,
			"us, num, period, returned, tail = gcra_state(state_key, value, now, den, zone_us)", "us, num = now, 0",
		},
		"a window gives back twice": {
			contest{limits: []string{"window"}, constant: true, settled: true},
			scripts.RateWindow,
			"= used - part,", "= math.max(0, used - 2 * part),",
		},
		"a sliding window gives back twice": {
			contest{limits: []string{"sliding"}, constant: true, settled: true},
			scripts.RateSliding,
			"= s.current - part,", "= math.max(0, s.current - 2 * part),",
		},
		"a window holds ten more": {
			contest{limits: []string{"window"}, constant: true},
			scripts.RateWindow,
			"local fit = (limit - used) / n", "local fit = (limit + 10 - used) / n",
		},
		"a window is used before it begins": {
			contest{limits: []string{"window"}, constant: true},
			scripts.RateWindow,
			"begins > ahead or ", "",
		},
		"a window does not heed a lower limit": {
			contest{limits: []string{"window"}},
			scripts.RateWindow,
			"local limit, length, ahead, runs = ARGV[1] + 0", "local limit, length, ahead, runs = math.max(40, ARGV[1])",
		},
		"a sliding window forgets the window before": {
			contest{limits: []string{"sliding"}, constant: true},
			scripts.RateSliding,
			"local share = s.previous\n", "s.previous = 0\n  local share = s.previous\n",
		},
		"a sliding window does not heed a lower limit": {
			contest{limits: []string{"sliding"}},
			scripts.RateSliding,
			"local limit, length, runs = ARGV[1] + 0", "local limit, length, runs = math.max(40, ARGV[1])",
		},
		"several limits, and a sliding window holds ten more": {
			contest{limits: []string{"GCRA", "sliding"}, wide: "GCRA", constant: true},
			scripts.RateAll,
			"l.used + n <= l.limit\nend\n\nsliding.take", "l.used + n <= l.limit + 10\nend\n\nsliding.take",
		},
		"entries of a log leave too early": {
			contest{limits: []string{"log"}, constant: true},
			scripts.RateLog,
			"local interval = interval_ms * 1000", "local interval = interval_ms * 700",
		},
		"a log does not heed a lower limit": {
			contest{limits: []string{"log"}},
			scripts.RateLog,
			"local rate, interval_ms, keep_ms = tonumber(config[1])", "local rate, interval_ms, keep_ms = math.max(40, config[1])",
		},
		"several limits, and GCRA grants half a second too early": {
			contest{limits: []string{"GCRA", "window"}, wide: "window", constant: true},
			scripts.RateAll,
			"l.full_us, l.full_num, l.burst_s = tonumber(next_argument())", "l.full_us, l.full_num, l.burst_s = 500000 + next_argument()",
		},
		"several limits, and a window is used before it begins": {
			contest{limits: []string{"GCRA", "window"}, wide: "GCRA", constant: true},
			scripts.RateAll,
			"l.begins == 0 and ", "",
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := c.contest
			s.mutation = mutate(t, c.script, c.from, c.to)
			// A rush that a slow machine stretches leaves no excess, so it is given more time.
			found := -1.0
			for run := 0; run < 15 && found <= 0; run++ {
				s.slower = 1 << (run / 4)
				s.lasts = s.scaled(3 * time.Second)
				found = s.excess(t)
			}
			require.Greater(t, found, 0.0)
		})
	}
}
