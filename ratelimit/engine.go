package ratelimit

import (
	"context"
	"fmt"
	"time"

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

// view is what one answer of Redis says about the time after it.
type view interface {
	// deny reports whether n permits cannot be granted yet when the given time has passed since the request was sent,
	// and if so for how much longer, and the denial. It never denies what Redis would grant.
	deny(n int64, passed time.Duration) (Result, bool)
	// wait is a lower bound of how long total permits take, for those who stand in line.
	wait(total int64, passed time.Duration) time.Duration
}

// run is a number of requests for n permits each.
type run struct {
	n     int64
	calls []*call
}

// runs groups neighbours that ask for the same, so that a thousand callers cost a script three arguments.
func runs(calls []*call) []run {
	var rs []run
	for i, c := range calls {
		if i == 0 || calls[i-1].n != c.n {
			rs = append(rs, run{n: c.n})
		}
		last := &rs[len(rs)-1]
		last.calls = append(last.calls, c)
	}
	return rs
}

// gcra is the engine of the generic cell rate algorithm.
type gcra struct {
	limit Limit
	pace  pace
}

// maxReserve bounds how far ahead a reservation may lie, and so how long a state can lock out after the server's clock
// was set back.
const maxReserve = time.Minute

func (g *gcra) local(view) (Limit, bool) { return g.limit, true }

func (g *gcra) args(ahead time.Duration, fifo bool) []any {
	full, order := g.pace.full, 0
	if fifo {
		order = 1
	}
	ahead = ahead.Truncate(time.Microsecond)
	return []any{g.pace.den, full.us + ahead.Microseconds(), full.num, full.us + maxReserve.Microseconds() + 1, order}
}

func (g *gcra) decide(ctx context.Context, rdb scripts.Client, key string, _ view, calls []*call, fifo bool) (view, error) {
	args, rs := g.args(0, fifo), runs(calls)
	for _, r := range rs {
		if cost := g.pace.cost(r.n); r.n > 0 {
			args = append(args, cost.us, cost.num, len(r.calls))
		} else {
			args = append(args, 0, 0, 0)
		}
	}
	reply, err := ints(scripts.RateGCRA.Run(ctx, rdb, []string{key}, args...), 3+len(rs))
	if err != nil {
		return nil, err
	}
	v := &gcraView{gcra: g, now: reply[0], tat: mark{reply[1], reply[2]}}
	// The state before is the state after without what was granted; replay it to tell each caller what he saw.
	tat := v.tat
	for i, r := range rs {
		for range reply[3+i] {
			tat = g.pace.sub(tat, g.pace.cost(r.n))
		}
	}
	for i, r := range rs {
		for k, c := range r.calls {
			if granted := int64(k) < reply[3+i]; granted {
				tat = g.pace.add(tat, g.pace.cost(r.n))
				c.res = v.result(tat, v.now, r.n)
				c.res.Allowed, c.res.Granted, c.res.RetryAfter = true, r.n, 0
			} else {
				c.res = v.result(tat, v.now, max(r.n, 1))
				c.res.Allowed = r.n == 0 && c.res.Remaining > 0
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

func (w *window) decide(ctx context.Context, rdb scripts.Client, key string, _ view, calls []*call, fifo bool) (view, error) {
	order, rs := 0, runs(calls)
	if fifo {
		order = 1
	}
	args := []any{w.limit.Rate, w.limit.Per.Milliseconds(), order}
	for _, r := range rs {
		args = append(args, r.n, len(r.calls))
	}
	reply, err := ints(scripts.RateWindow.Run(ctx, rdb, []string{key}, args...), 2+len(rs))
	if err != nil {
		return nil, err
	}
	// A key lives until its last millisecond is over.
	v := &windowView{window: w, used: reply[0], ends: time.Duration(reply[1]+1) * time.Millisecond}
	used := reply[0]
	for i, r := range rs {
		used -= reply[2+i] * r.n
	}
	for i, r := range rs {
		for k, c := range r.calls {
			granted := int64(k) < reply[2+i]
			if granted {
				used += r.n
			}
			c.res = v.result(used, v.ends)
			c.res.Allowed = granted || r.n == 0 && c.res.Remaining > 0
			if granted {
				c.res.Granted, c.res.RetryAfter = r.n, 0
			} else if r.n <= c.res.Remaining {
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

// ints reads a reply of at least n integers.
func ints(cmd interface{ Int64Slice() ([]int64, error) }, n int) ([]int64, error) {
	reply, err := cmd.Int64Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) < n {
		return nil, fmt.Errorf("ratelimit: unexpected reply of %d integers", len(reply))
	}
	return reply, nil
}
