package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// exact is a definition of a limit, which follows what the server executed.
type exact interface {
	// follow takes what a script gave back and granted, and says what it should not have granted.
	follow(e *execution) string
	reset()
}

// judgeExactly judges the scripts about a limit in the order in which the server executed them, each under the
// limit that its caller sent. So it judges requests of one key under different limits. Bursts are the times of the
// whole bursts of these, in microseconds.
//
// What is given back counts as if it had never been charged, and a debt as if it were granted, whatever the limit is.
func judgeExactly(kind string, about []execution, lost, bursts []int64) (faults []check.Fault) {
	alg := map[string]exact{
		bucketKind: &exactBucket{bursts: bursts}, windowKind: &exactWindows{},
		slidingKind: &exactSliding{}, storedKind: &exactLog{},
	}[kind]
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

// maxReserve is how far ahead a reservation may be, in microseconds.
const maxReserve = 60_000_000

// exactBucket is the generic cell rate algorithm, for the permits that are used, each at the instant from which on it
// may be used. Times are in microseconds.
type exactBucket struct {
	bursts  []int64
	charges []*bucketCharge // in the order of these instants
}

type bucketCharge struct {
	at, worth float64
	most      float64 // how far ahead of the instant the state may be
	debt      bool
	id        string
}

func (b *exactBucket) reset() { *b = exactBucket{bursts: b.bursts} }

func (b *exactBucket) add(c *bucketCharge) {
	later := func(other *bucketCharge) bool { return other.at > c.at }
	i := len(b.charges)
	if at := slices.IndexFunc(b.charges, later); at >= 0 {
		i = at
	}
	b.charges = slices.Insert(b.charges, i, c)
}

// excess returns how much further ahead than it may be the state is with a new charge, or later with those of the same
// limit.
func (b *exactBucket) excess(added *bucketCharge) (worst float64) {
	all, same, came := 0.0, 0.0, false
	for _, c := range b.charges {
		all = max(all, c.at) + c.worth
		came = came || c == added
		if c == added {
			worst = max(worst, all-c.at-c.most)
		}
		if c.most == added.most {
			if same = max(same, c.at) + c.worth; came && !c.debt {
				worst = max(worst, same-c.at-c.most)
			}
		}
	}
	return worst
}

func (b *exactBucket) follow(e *execution) (wrong string) {
	const rounding = 20
	d := e.decision
	den, now, granted := float64(d.arg(1)), float64(d.now), e.granted()
	back, debt := e.settled()
	whole := float64(d.arg(2)) + float64(d.arg(3))/den
	if b.state() <= now {
		b.reset()
	}
	for _, part := range back {
		left := float64(part.n) / 1000
		for _, c := range slices.Backward(b.charges) {
			if c.id == part.of {
				n := min(left, c.worth)
				c.worth, left = c.worth-n, left-n
			}
		}
	}
	b.charges = slices.DeleteFunc(b.charges, func(c *bucketCharge) bool { return c.worth < 0.01 }) // as if never made
	if debt > 0 {
		b.add(&bucketCharge{at: now, worth: float64(debt), most: whole, debt: true})
		at := len(d.args)
		if most := whole + float64(d.arg(at)); b.state()-now > most+rounding {
			wrong = fmt.Sprintf("charged a debt of %d us, %.0f us too much", debt, b.state()-now-most)
		}
	}
	// The permits of waiters count from now on: that is a little too early.
	c := &bucketCharge{at: now, most: whole, id: e.charged()}
	if burst := d.arg(2) - maxReserve; c.id != "" && slices.Contains(b.bursts, burst) {
		c.most = float64(burst) + float64(d.arg(3))/den
		c.at = max(now, float64(d.reply[1])+float64(d.reply[2])/den-c.most)
	}
	for run, n := range granted {
		c.worth += float64(n) * (float64(d.arg(6+3*run)) + float64(d.arg(7+3*run))/den)
	}
	if c.worth > 0 {
		if b.add(c); b.excess(c) > rounding {
			wrong = fmt.Sprintf("granted %d requests, %.0f us too early", granted, b.excess(c))
		}
	}
	return wrong
}

// state returns when all permits are back.
func (b *exactBucket) state() (us float64) {
	for _, c := range b.charges {
		us = max(us, c.at) + c.worth
	}
	return us
}

// exactWindows are fixed windows. Times are in milliseconds. Permits can be given back to the last one.
type exactWindows struct {
	begins, ends, used int64
	id                 string // of the charges that can be given back
	reserved           int64  // by them
}

func (w *exactWindows) reset() { *w = exactWindows{} }

func (w *exactWindows) follow(e *execution) string {
	const rounding = 2
	d := e.decision
	now, limit, length, ahead := d.now/1000, d.arg(1), d.arg(2), d.arg(3)
	// The server keeps the rest of a window in whole milliseconds, so each can be a little shorter than it should.
	if drift := now + d.reply[2] - w.ends; -rounding <= drift && drift <= rounding {
		w.begins, w.ends = w.begins+drift, w.ends+drift
	}
	back, debt := e.settled()
	for _, part := range back {
		if part.of == w.id {
			n := min(part.n, w.reserved)
			w.used, w.reserved = w.used-n, w.reserved-n
		}
	}
	switch here := min(debt, max(0, limit-w.used)); {
	case debt == 0:
	case max(now, w.ends)-min(now, w.ends) <= rounding: // which of two windows is the present one is not known
		*w = exactWindows{begins: now + d.reply[1], ends: now + d.reply[2], used: d.reply[0]}
	case now > w.ends:
		*w = exactWindows{begins: now, ends: now + length, used: min(debt, limit)}
		if debt > limit {
			*w = exactWindows{begins: w.ends, ends: w.ends + length, used: debt - limit}
		}
	case w.begins <= now+rounding && here < debt:
		*w = exactWindows{begins: w.ends, ends: w.ends + length, used: debt - here}
	default:
		w.used += debt
	}
	if debt > 0 && w.used > limit {
		return fmt.Sprintf("charged a debt of %d: %d of %d", debt, w.used, limit)
	}
	if d.reply[0] == 0 && w.ends-now <= rounding { // it has ended a little sooner
		w.ends = min(w.ends, now)
	}
	for run, granted := range e.granted() {
		n := d.arg(5 + 2*run)
		for range granted {
			switch {
			case now >= w.ends, w.used+n > limit && now+ahead+rounding >= w.ends:
				begins := max(now, w.ends)
				*w = exactWindows{begins: begins, ends: begins + length}
			case w.used+n > limit:
				return fmt.Sprintf("granted %d beyond the %d of %d that are used, %d ms before the window ends",
					n, w.used, limit, w.ends-now)
			case now+ahead+rounding < w.begins:
				return fmt.Sprintf("granted %d of a window that begins in %d ms", n, w.begins-now)
			}
			if w.used += n; w.used > limit {
				return fmt.Sprintf("granted %d of %d", w.used, limit)
			}
			w.ends = max(w.ends, w.begins+length)
			if id := e.charged(); id != "" {
				if id != w.id {
					w.id, w.reserved = id, 0
				}
				w.reserved += n
			}
		}
	}
	return ""
}

// exactSliding is a sliding window by the server's clock, which shows whole milliseconds. Debts above the limit count
// in the next window instead.
type exactSliding struct {
	index, previous, current, owed int64
	reserved                       map[string]*windowCharge
}

// windowCharge is what was charged to a window and can be given back.
type windowCharge struct{ index, n int64 }

func (w *exactSliding) reset() { *w = exactSliding{} }

func (w *exactSliding) follow(e *execution) string {
	d := e.decision
	now, limit, length := d.now/1000, d.arg(1), d.arg(2)
	index := now / length
	if w.index < index-2 {
		w.previous, w.current, w.owed = 0, 0, 0
	}
	for w.index = max(w.index, index-2); w.index < index; w.index++ {
		w.previous, w.current, w.owed = w.current, w.owed, 0
	}
	back, debt := e.settled()
	for _, part := range back {
		c := w.reserved[part.of]
		if c == nil {
			continue
		}
		n := min(part.n, c.n)
		switch c.n -= n; c.index {
		case index:
			owed := min(n, w.owed)
			w.owed, w.current = w.owed-owed, w.current-(n-owed)
		case index - 1:
			w.previous -= n
		}
	}
	here := min(debt, max(0, limit-w.current))
	w.current, w.owed = w.current+here, w.owed+debt-here
	left := length - now%length
	used := w.current + w.owed + (w.previous*left+length-1)/length
	if debt > 0 && used > limit+min(limit, d.arg(len(d.args))) {
		return fmt.Sprintf("charged a debt of %d: %d of %d", debt, used, limit)
	}
	for run, granted := range e.granted() {
		n := d.arg(4+2*run) * granted
		if n == 0 {
			continue
		}
		if used += n; used > limit {
			return fmt.Sprintf("granted %d requests, with %d of %d used then", granted, used, limit)
		}
		w.current += n
		if id := e.charged(); id != "" {
			if w.reserved == nil {
				w.reserved = make(map[string]*windowCharge)
			}
			if w.reserved[id] == nil {
				w.reserved[id] = &windowCharge{index: index}
			}
			w.reserved[id].n += n
		}
	}
	return ""
}

// exactLog counts the entries of the last period. Times are in microseconds.
type exactLog struct{ entries map[string]logEntry }

func (l *exactLog) reset() { l.entries = nil }

func (l *exactLog) follow(e *execution) (wrong string) {
	const rounding = 2000
	d := e.decision
	rate, period := d.reply[0], d.reply[1]*1000
	if l.entries == nil {
		l.entries = make(map[string]logEntry)
	}
	back, debt := e.settled()
	for _, part := range back {
		entry := l.entries[part.of]
		if entry.n -= part.n; entry.n >= 0 {
			l.entries[part.of] = entry
		}
	}
	for _, entry := range d.entries() {
		if _, again := l.entries[entry.member]; again {
			continue
		}
		used := entry.n
		for _, e := range l.entries {
			if e.at > entry.at-period+rounding && e.at <= entry.at {
				used += e.n
			}
		}
		most := rate
		if debt > 0 {
			most += rate
		}
		if l.entries[entry.member] = entry; used > most {
			wrong = fmt.Sprintf("granted %d of %d in a period", used, most)
		}
	}
	return wrong
}
