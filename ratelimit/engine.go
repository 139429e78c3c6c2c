package ratelimit

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// engine is an algorithm. It is immutable; what is known about a key is a view.
type engine interface {
	// decide sends the calls as one script, in order, and sets the result of each. With fifo the first denial denies
	// all after it. last is the view of the call before, or nil.
	decide(ctx context.Context, rdb scripts.Client, key string, last view, calls []*call, fifo bool) (view, error)
	// local is the limit for deciding without Redis; false if it is not known.
	local(last view) (Limit, bool)
}

// batched is an engine whose scripts for different keys can share a pipeline.
type batched interface {
	engine
	script() *scripts.Script
	encode(key string, calls []*call, fifo bool) scripts.Call
	// decode sets the result of each call from the reply to what encode made of them.
	decode(cmd *redis.Cmd, calls []*call) (view, error)
}

// view is what one answer of Redis says about the time after it.
type view interface {
	// deny reports whether n permits cannot be granted yet when the given time has passed since the request was sent,
	// and if so for how much longer, and the denial. It never denies what Redis would grant.
	deny(n int64, passed time.Duration) (Result, bool)
	// wait is a lower bound of how long total permits take, for those who stand in line.
	wait(total int64, passed time.Duration) time.Duration
}

// runs are the stretches of calls that ask for the same. A script is told each of them once, so that a thousand
// callers cost it three arguments.
func runs(calls []*call) iter.Seq2[int, []*call] {
	return func(yield func(int, []*call) bool) {
		for k, from := 0, 0; from < len(calls); k++ {
			end := from + 1
			for end < len(calls) && calls[end].n == calls[from].n {
				end++
			}
			if !yield(k, calls[from:end]) {
				return
			}
			from = end
		}
	}
}

// gcra is the engine of the generic cell rate algorithm.
type gcra struct {
	limit Limit
	pace  pace
	// What every script is told: the limit, and the price of one permit.
	head, one []any
}

func newGCRA(limit Limit) *gcra {
	g := &gcra{limit: limit, pace: newPace(limit)}
	g.head = g.ceiling(0)
	cost := g.pace.cost(1)
	g.one = []any{cost.us, cost.num}
	return g
}

// maxReserve bounds how far ahead a reservation may lie, and so how long a state can lock out after the server's clock
// was set back. The script knows it too.
const maxReserve = time.Minute

func (g *gcra) local(view) (Limit, bool) { return g.limit, true }

// ceiling is what the script has to know of the limit; ahead is how far beyond a full burst it may grant.
func (g *gcra) ceiling(ahead time.Duration) []any {
	return []any{g.pace.den, g.pace.full.us + ahead.Microseconds(), g.pace.full.num}
}

func (g *gcra) script() *scripts.Script { return scripts.RateGCRA }

func (g *gcra) decide(ctx context.Context, rdb scripts.Client, key string, _ view, calls []*call, fifo bool) (view, error) {
	return ask(ctx, rdb, g, key, calls, fifo)
}

func (g *gcra) encode(key string, calls []*call, fifo bool) scripts.Call {
	args := append(make([]any, 0, 7), g.head...)
	for _, run := range runs(calls) {
		switch n := run[0].n; n {
		case 0:
			args = append(args, 0, 0, 0)
		case 1:
			args = append(append(args, g.one...), len(run))
		default:
			cost := g.pace.cost(n)
			args = append(args, cost.us, cost.num, len(run))
		}
	}
	if fifo {
		args = append(args, 1)
	}
	return scripts.Call{Keys: []string{key}, Args: args}
}

func (g *gcra) decode(cmd *redis.Cmd, calls []*call) (view, error) {
	reply, err := ints(cmd, 3, calls)
	if err != nil {
		return nil, err
	}
	v, granted := &gcraView{gcra: g, now: reply[0], tat: mark{reply[1], reply[2]}}, reply[3:]
	// The state before is the state after without what was granted; replay it to tell each caller what he saw.
	tat := v.tat
	for k, run := range runs(calls) {
		for range granted[k] {
			tat = g.pace.sub(tat, g.pace.cost(run[0].n))
		}
	}
	for k, run := range runs(calls) {
		cost := g.pace.cost(run[0].n)
		for at, c := range run {
			if int64(at) < granted[k] {
				tat = g.pace.add(tat, cost)
				c.res = v.result(tat, v.now, c.n)
				c.res.Allowed, c.res.Granted, c.res.RetryAfter = true, c.n, 0
			} else {
				c.res = v.result(tat, v.now, max(c.n, 1))
				c.res.Allowed = c.n == 0 && c.res.Remaining > 0
			}
		}
	}
	return v, nil
}

type gcraView struct {
	gcra *gcra
	now  int64
	tat  mark
}

func (v *gcraView) result(tat mark, now, n int64) Result {
	p := v.gcra.pace
	return Result{
		Limit:      v.gcra.limit.Burst,
		Remaining:  p.remaining(tat, now),
		RetryAfter: p.delay(tat, now, n),
		ResetAfter: p.reset(tat, now),
	}
}

// deny holds for any request, not only for one like that which was denied: others can only have moved tat further.
func (v *gcraView) deny(n int64, passed time.Duration) (Result, bool) {
	now := v.now + (passed + time.Microsecond - 1).Microseconds()
	if v.gcra.pace.delay(v.tat, now, n) == 0 {
		return Result{}, false
	}
	return v.result(v.tat, now, n), true
}

func (v *gcraView) wait(total int64, passed time.Duration) time.Duration {
	return v.gcra.pace.delay(v.tat, v.now+passed.Microseconds(), total)
}

// window is the engine of fixed windows.
type window struct{ limit Limit }

func (w *window) local(view) (Limit, bool) { return w.limit, true }

func (w *window) script() *scripts.Script { return scripts.RateWindow }

func (w *window) decide(ctx context.Context, rdb scripts.Client, key string, _ view, calls []*call, fifo bool) (view, error) {
	return ask(ctx, rdb, w, key, calls, fifo)
}

func (w *window) encode(key string, calls []*call, fifo bool) scripts.Call {
	order := 0
	if fifo {
		order = 1
	}
	args := []any{w.limit.Rate, w.limit.Per.Milliseconds(), order}
	for _, run := range runs(calls) {
		args = append(args, run[0].n, len(run))
	}
	return scripts.Call{Keys: []string{key}, Args: args}
}

func (w *window) decode(cmd *redis.Cmd, calls []*call) (view, error) {
	reply, err := ints(cmd, 2, calls)
	if err != nil {
		return nil, err
	}
	// A key lives until its last millisecond is over.
	v, granted := &windowView{window: w, used: reply[0], ends: time.Duration(reply[1]+1) * time.Millisecond}, reply[2:]
	used := reply[0]
	for k, run := range runs(calls) {
		used -= granted[k] * run[0].n
	}
	for k, run := range runs(calls) {
		for at, c := range run {
			ok := int64(at) < granted[k]
			if ok {
				used += c.n
			}
			c.res = v.result(used, v.ends)
			c.res.Allowed = ok || c.n == 0 && c.res.Remaining > 0
			if ok {
				c.res.Granted, c.res.RetryAfter = c.n, 0
			} else if c.n <= c.res.Remaining {
				c.res.RetryAfter = 0
			}
		}
	}
	return v, nil
}

type windowView struct {
	window *window
	used   int64
	ends   time.Duration
}

func (v *windowView) result(used int64, ends time.Duration) Result {
	r := Result{Limit: v.window.limit.Rate, Remaining: max(0, v.window.limit.Rate-used), RetryAfter: ends, ResetAfter: ends}
	if used == 0 {
		r.ResetAfter = 0
	}
	return r
}

func (v *windowView) deny(n int64, passed time.Duration) (Result, bool) {
	if v.used+n <= v.window.limit.Rate || passed >= v.ends {
		return Result{}, false
	}
	return v.result(v.used, v.ends-passed), true
}

func (v *windowView) wait(total int64, passed time.Duration) time.Duration {
	missing := total - (v.window.limit.Rate - v.used)
	if missing <= 0 {
		return 0
	}
	return max(0, v.ends-passed+time.Duration((missing-1)/v.window.limit.Rate)*v.window.limit.Per)
}

// ask decides by a script of its own.
func ask(ctx context.Context, rdb scripts.Client, e batched, key string, calls []*call, fifo bool) (view, error) {
	sent := e.encode(key, calls, fifo)
	return e.decode(e.script().Run(ctx, rdb, sent.Keys, sent.Args...), calls)
}

// ints reads a reply of integers: some, and one for each run of calls.
func ints(cmd *redis.Cmd, some int, calls []*call) ([]int64, error) {
	for range runs(calls) {
		some++
	}
	reply, err := cmd.Int64Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) < some {
		return nil, fmt.Errorf("ratelimit: unexpected reply of %d integers", len(reply))
	}
	return reply, nil
}
