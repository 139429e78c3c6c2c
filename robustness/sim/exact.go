package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// exact follows what the server executed about a limit, and compares it with the definition of the limit. Its clock is
// that of the server, which shows windows in whole milliseconds.
type exact interface {
	// follow takes what a script gave back and granted, and says what it should not have granted.
	follow(e *execution) string
	reset()
}

// reserved are the charges that can be given back.
type reserved map[string]*reservation

// reservation is what is left of the permits that were granted for an instant.
type reservation struct{ at, n int64 }

func (r reserved) add(id string, at, n int64) {
	if id == "" {
		return
	}
	if r[id] == nil {
		r[id] = &reservation{at: at}
	}
	r[id].n += n
}

func (r reserved) giveBack(to oracle.Settling, back []part, at int64, l oracle.Limit) {
	for _, part := range back {
		if c := r[part.of]; c != nil {
			n := min(part.n, c.n)
			to.GiveBack(at, c.at, n, l)
			c.n -= n
		}
	}
}

// judgeExactly judges the scripts about a limit in the order in which the server executed them, each under the
// limit that its caller sent. So it judges requests of one key under different limits.
//
// What is given back counts as if it had never been charged, and a debt as if it were granted, whatever the limit is.
func judgeExactly(kind string, about []execution, lost []int64) (faults []check.Fault) {
	alg := map[string]exact{
		bucketKind: &exactBucket{}, windowKind: &exactWindows{},
		slidingKind: &exactSliding{}, storedKind: &exactLog{},
	}[kind]
	alg.reset()
	for _, e := range about {
		for len(lost) > 0 && lost[0] <= e.at {
			alg.reset()
			lost = lost[1:]
		}
		switch {
		case slices.Contains([]string{"del", "unlink", "rate_set"}, e.name):
			alg.reset()
		case e.decision == nil || e.decision.reply == nil:
		default:
			if wrong := alg.follow(&e); wrong != "" {
				detail := fmt.Sprintf("at %v, process %d: %s", time.Duration(e.at), e.link, wrong)
				faults = append(faults, check.Fault{Promise: "a script grants what its limit allows", Detail: detail})
			}
		}
	}
	return faults
}

const msec = int64(time.Millisecond)

// windowLimit returns the limit of the first two arguments of a script.
func (d *decision) windowLimit() oracle.Limit {
	return oracle.Limit{Rate: d.arg(1), Per: time.Duration(d.arg(2) * msec), Burst: d.arg(1)}
}

// exactBucket judges by GCRA. A permit is a nanosecond, as scripts are told prices.
type exactBucket struct {
	oracle.Bucket

	places []usedPlace
}

// usedPlace is a place, from when on it is used, and what is left of it.
type usedPlace struct {
	place

	at, left int64
}

func (b *exactBucket) reset() { *b = exactBucket{Bucket: oracle.Bucket{Early: bucketRounding}} }

func (b *exactBucket) follow(e *execution) (wrong string) {
	d := e.decision
	ns := func(us, parts int64) int64 { return us*1000 + parts*1000/d.arg(1) }
	limit, now := oracle.Limit{Rate: 1, Per: 1, Burst: ns(d.arg(2), d.arg(3))}, d.now*1000
	back, debt := e.settled()
	for _, part := range back {
		for i := range b.places {
			p := &b.places[i]
			n := min(p.left, part.in(p.place))
			b.GiveBack(now, p.at, n, limit)
			p.left -= n
		}
	}
	b.places = slices.DeleteFunc(b.places, func(p usedPlace) bool { return p.to < now })
	if debt > 0 {
		b.Book(now, debt*1000, limit)
		most := limit
		most.Burst += d.arg(len(d.args)) * 1000
		if free := b.Free(now, 0, most); free > now {
			wrong = fmt.Sprintf("charged a debt of %d us, %v too much", debt, time.Duration(free-now))
		}
	}
	for _, p := range e.places() {
		at, worth := max(now, p.to-limit.Burst), p.to-p.from
		if free := b.Free(at, worth, limit); free > at {
			wrong = fmt.Sprintf("granted %d requests, %v too early", e.granted(), time.Duration(free-at))
		}
		b.Grant(at, worth, limit)
		if p.of != "" {
			b.places = append(b.places, usedPlace{p, at, worth})
		}
	}
	return wrong
}

// exactWindows judges by fixed windows.
type exactWindows struct {
	oracle.Windows

	reserved reserved
}

func (w *exactWindows) reset() { *w = exactWindows{reserved: make(reserved)} }

func (w *exactWindows) follow(e *execution) string {
	const rounding = 2 * msec
	d, limit := e.decision, e.decision.windowLimit()
	now, ahead, begins, ends := d.now/1000*msec, d.arg(3)*msec, d.reply[1]*msec, d.reply[2]*msec
	// The server keeps the rest of a window in whole milliseconds, so each can be a little shorter than it should.
	if drift := now + ends - w.Ends; -rounding <= drift && drift <= rounding {
		w.Begins, w.Ends = w.Begins+drift, w.Ends+drift
	}
	back, debt := e.settled()
	w.reserved.giveBack(w, back, now, limit)
	switch {
	case debt == 0:
	case max(now, w.Ends)-min(now, w.Ends) <= rounding: // which of two windows is the present one is not known
		w.Windows = oracle.Windows{Begins: now + begins, Ends: now + ends, Used: d.reply[0]}
	case w.Begins <= now+rounding:
		w.Book(max(now, w.Begins), debt, limit)
	default:
		w.Book(now, debt, limit)
	}
	if debt > 0 && w.Used > limit.Rate {
		return fmt.Sprintf("charged a debt of %d: %d of %d", debt, w.Used, limit.Rate)
	}
	if d.reply[0] == 0 && w.Ends-now <= rounding { // it has ended a little sooner
		w.Ends = min(w.Ends, now)
	}
	for run, granted := range e.granted() {
		n := d.arg(5 + 2*run)
		for range granted {
			free := w.Free(now, n, limit)
			if free > now+ahead+rounding {
				return fmt.Sprintf("granted %d with %d of %d used, %v before there were permits",
					n, w.Used, limit.Rate, time.Duration(free-now))
			}
			w.Grant(free, n, limit)
			w.reserved.add(e.charged(), w.Begins+int64(limit.Per)/2, n) // its ends may drift
		}
	}
	return ""
}

// exactSliding judges by a sliding window.
type exactSliding struct {
	oracle.SlidingWindow

	reserved reserved
}

func (w *exactSliding) reset() { *w = exactSliding{reserved: make(reserved)} }

func (w *exactSliding) follow(e *execution) string {
	d, limit := e.decision, e.decision.windowLimit()
	now := d.now / 1000 * msec
	back, debt := e.settled()
	w.reserved.giveBack(w, back, now, limit)
	if debt > 0 {
		w.Book(now, debt, limit)
		if left := w.Left(now, limit); -left > min(limit.Rate, d.arg(len(d.args))) {
			return fmt.Sprintf("charged a debt of %d: %d of %d", debt, limit.Rate-left, limit.Rate)
		}
	}
	for run, granted := range e.granted() {
		n, left := d.arg(4+2*run)*granted, w.Left(now, limit)
		if n > 0 && n > left {
			return fmt.Sprintf("granted %d requests for %d, with %d of %d left", granted, n, left, limit.Rate)
		}
		w.Grant(now, n, limit)
		w.reserved.add(e.charged(), now, n)
	}
	return ""
}

// exactLog judges by the sliding log.
type exactLog struct {
	oracle.SlidingLog

	reserved reserved // all entries
}

func (g *exactLog) reset() { *g = exactLog{reserved: make(reserved)} }

func (g *exactLog) follow(e *execution) (wrong string) {
	const rounding = 2 * msec
	d := e.decision
	limit := oracle.Limit{Rate: d.reply[0], Per: time.Duration(d.reply[1] * msec)}
	back, debt := e.settled()
	g.reserved.giveBack(g, back, d.now*1000, limit)
	if debt > 0 {
		limit.Rate *= 2
	}
	for _, entry := range d.entries() {
		if g.reserved[entry.member] != nil { // it was entered before
			continue
		}
		at := entry.at * 1000
		if free := g.Free(at+rounding, entry.n, limit); free > at+rounding {
			wrong = fmt.Sprintf("granted %d, %v before there were permits", entry.n, time.Duration(free-at))
		}
		g.Grant(at, entry.n, limit)
		g.reserved.add(entry.member, at, entry.n)
	}
	return wrong
}
