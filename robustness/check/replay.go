package check

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
)

// Either is a limit of which it is not known by which definition it grants: permits are free by all of them.
type Either []oracle.Algorithm

// Free implements [oracle.Algorithm].
func (e Either) Free(at, n int64, l oracle.Limit) (free int64) {
	for _, a := range e {
		free = max(free, a.Free(at, n, l))
	}
	return free
}

// Grant implements [oracle.Algorithm].
func (e Either) Grant(at, n int64, l oracle.Limit) {
	for _, a := range e {
		a.Grant(at, n, l)
	}
}

// Reset implements [oracle.Algorithm].
func (e Either) Reset() {
	for _, a := range e {
		a.Reset()
	}
}

// Ask is a request for permits of one limit, and what became of it.
type Ask struct {
	ID             uint64
	N              int64
	Limit          oracle.Limit // the largest that may have been in force
	Least          oracle.Limit // the smallest
	Called, Return int64
	By             int   // the process
	Slack          int64 // how much longer than by the definition its answer may tell it to wait

	// Instants are those at which the server may have decided, the likeliest first. A waiter may have got
	// permits ahead of their time, until which it waits; its return is one of them. Instants before the call are those
	// of permits that were charged for others.
	Instants []int64

	Granted bool
	Denied  bool  // it returned without permits: there were none
	Leaves  int64 // when its caller leaves; 0 for never
	Retry   time.Duration
	Waits   bool
	Behind  bool // callers of its process waited at the time, whose turn comes first
	Unsure  bool // whether it was granted is unknown, and when
	Back    []Back
}

// Back is a part of a request that was given back: permits, and when. Without it, more counts as granted than was. That
// explains denials by any definition but that of fixed windows, which would begin at other times.
type Back struct{ At, N int64 }

// Left returns the permits that were not given back by an instant.
func (a *Ask) Left(at int64) int64 {
	n := a.N
	for _, b := range a.Back {
		if b.At <= at {
			n -= b.N
		}
	}
	return n
}

func (a *Ask) describe(l oracle.Limit) string {
	return fmt.Sprintf("request %d for %d of %d per %v", a.ID, a.N, l.Rate, l.Per)
}

// Replay judges the requests for one limit by its definition. Rounding is how much earlier than by the
// definition the server may grant, as it counts in whole units of time. Resets are the instants at which the
// server forgot what was taken; executed are those at which it executed a script about the limit.
func Replay(define func() oracle.Algorithm, asks []*Ask, resets, executed []int64, rounding int64) (faults []Fault) {
	r := replay{define, slices.Clone(asks), resets, executed, rounding, map[*Ask]int{}, map[*Ask]bool{}}
	r.asks = slices.DeleteFunc(r.asks, func(a *Ask) bool { return !a.Granted })
	for {
		early, at, free := r.run()
		if early == nil {
			return faults
		}
		if !r.move(early, at) && !r.shake(early, at) {
			r.excused[early] = true
			faults = append(faults, Fault{Promise: "a limit is kept", Detail: fmt.Sprintf(
				"%s was granted at %v, %v before there were permits",
				early.describe(early.Limit), time.Duration(at), time.Duration(min(free, oracle.Never)-at))})
		}
	}
}

// replay is a search for instants at which the server may have granted requests.
type replay struct {
	define           func() oracle.Algorithm
	asks             []*Ask
	resets, executed []int64
	rounding         int64
	chosen           map[*Ask]int  // of the instants of each request
	excused          map[*Ask]bool // found to be granted too early, whatever the instants
}

func (r *replay) at(a *Ask) int64 { return a.Instants[r.chosen[a]] }

// run grants the requests at the instants that are chosen. It returns the first that is granted too early, and
// when it was granted and could have been.
func (r *replay) run() (early *Ask, at, free int64) {
	alg, resets := r.define(), r.resets
	slices.SortStableFunc(r.asks, func(a, b *Ask) int { return cmp.Compare(r.at(a), r.at(b)) })
	for _, a := range r.asks {
		now := r.at(a)
		for len(resets) > 0 && resets[0] <= now {
			alg.Reset()
			resets = resets[1:]
		}
		from, used := now, now
		if a.Waits {
			from, used = min(now, a.Called), a.Return
		}
		free := alg.Free(from, a.N, a.Limit)
		if w, ok := alg.(*oracle.Windows); ok && free > used+r.rounding && r.opened(w, now, a.Limit) {
			w.Reset()
			free = now
		}
		if free > used+r.rounding && !r.excused[a] {
			return a, now, free
		}
		alg.Grant(min(free, used), a.N, a.Limit)
	}
	return nil, 0, 0
}

// opened reports whether a request whose caller learned of nothing may have begun a window before the one that
// the replay saw begin.
func (r *replay) opened(w *oracle.Windows, now int64, limit oracle.Limit) bool {
	return slices.ContainsFunc(r.executed, func(u int64) bool {
		return u < w.Begins && u >= w.Begins-int64(limit.Per) && u+int64(limit.Per) <= now+r.rounding
	})
}

// moves is how many requests before one that was granted too early may be tried at other instants.
const moves = 40

// move chooses another instant for one request, so that a request is granted too early later than now, or none
// is. It returns false if there is no such choice.
func (r *replay) move(early *Ask, now int64) bool {
	i := slices.Index(r.asks, early)
	var best *Ask
	choice, latest := 0, now
	for _, a := range slices.Clone(r.asks[max(0, i-moves) : i+1]) {
		before := r.chosen[a]
		for c := range min(len(a.Instants), moves) {
			r.chosen[a] = c
			switch next, at, _ := r.run(); {
			case next == nil:
				return true
			case at > latest:
				best, choice, latest = a, c, at
			}
		}
		r.chosen[a] = before
	}
	if best != nil {
		r.chosen[best] = choice
	}
	return best != nil
}

// shakes is how often other instants are drawn for all requests that move tries one by one.
const shakes = 400

// shake draws other instants for several requests at once, as one alone may not do. It returns what move returns.
func (r *replay) shake(early *Ask, now int64) bool {
	i := slices.Index(r.asks, early)
	near := slices.Clone(r.asks[max(0, i-moves) : i+1])
	before := maps.Clone(r.chosen)
	draw := rand.New(rand.NewPCG(1, uint64(now)))
	for range shakes {
		for _, a := range near {
			if draw.IntN(3) == 0 {
				r.chosen[a] = draw.IntN(min(len(a.Instants), moves))
			}
		}
		if next, at, _ := r.run(); next == nil || at > now {
			return true
		}
		r.chosen = maps.Clone(before)
	}
	return false
}

// Denials judges the requests that were denied, and the waiters. All others count as granted, at the latest
// instant that is possible: so what is denied nevertheless, or waits longer than patience, was not for want of
// permits. What was asked for after the first request of unknown outcome is not judged. Changes are the
// instants at which the limit, or what was taken of it, may have changed: for as long as patience after one,
// processes need not know of it. Charged are the permits that the server charged, if that is known: a denial may be due
// to those that no request has got. A process charges some for waiters who leave, or are to come.
func Denials(
	define func() oracle.Algorithm, asks, charged []*Ask, resets, changes []int64, rounding, patience int64,
) (faults []Fault) {
	asks = slices.Clone(asks)
	slices.SortStableFunc(asks, func(a, b *Ask) int { return cmp.Compare(a.Called, b.Called) })
	unsure := oracle.Never
	for _, a := range asks {
		if a.Unsure {
			unsure = min(unsure, a.Called)
		}
	}
	for _, a := range asks {
		if a.Return >= unsure || a.Behind || a.N > a.Least.Rate || a.N > a.Least.Burst {
			continue
		}
		since, changed := a.Called, false
		for _, at := range changes {
			if at <= a.Return {
				since = max(since, at)
				changed = changed || at+patience >= a.Called
			}
		}
		if changed && (!a.Waits || a.Denied) { // it was refused by what its process knew
			continue
		}
		others := asks
		if !a.Waits && charged != nil {
			others = charged
		}
		free := max(since, worst(define(), others, a, resets, a.Called))
		if a.Waits { // also for what was charged before it was, for waiters who left
			free = max(free, worst(define(), before(charged, a), a, resets, a.Called))
		}
		early := a.Called - rounding - a.Slack
		add := func(promise, format string, args ...any) {
			faults = append(faults, Fault{Promise: promise, Detail: fmt.Sprintf("%s %s, with permits from %v on",
				a.describe(a.Least), fmt.Sprintf(format, args...), time.Duration(free))})
		}
		switch {
		case a.Waits && a.Return-free > patience:
			add("no waiter is stranded", "waited until %v", time.Duration(a.Return))
		case a.Waits && a.Denied && a.Leaves > 0 && free+patience < a.Leaves:
			add("a waiter is not sent away", "was told at %v that it would wait beyond %v",
				time.Duration(a.Return), time.Duration(a.Leaves))
		case a.Waits || !a.Denied:
		case worst(define(), others, a, resets, early) <= early:
			add("a denial is true", "was denied at %v", time.Duration(a.Return))
		case a.Return+int64(a.Retry) > max(free, a.Return)+rounding+a.Slack:
			add("RetryAfter is not too long", "was told at %v to come back after %v",
				time.Duration(a.Return), a.Retry)
		}
	}
	return faults
}

// before returns the charges until a request returned, but the last of its process, which was for it.
func before(charged []*Ask, a *Ask) (others []*Ask) {
	others = slices.DeleteFunc(slices.Clone(charged), func(c *Ask) bool { return c.Return > a.Return })
	for i, c := range slices.Backward(others) {
		if c.By == a.By {
			return slices.Delete(others, i, i+1)
		}
	}
	return others
}

// worst returns the first instant from at on at which there are permits for a request at the latest: as if all
// others that were called before it returned had been granted.
func worst(alg oracle.Algorithm, asks []*Ask, a *Ask, resets []int64, at int64) int64 {
	type event struct {
		at  int64
		ask *Ask
	}
	var events []event
	for _, other := range asks {
		if other != a && !other.Denied && other.Called <= a.Return {
			events = append(events, event{min(other.Return, a.Return), other})
		}
	}
	for _, at := range resets {
		if at <= a.Return {
			events = append(events, event{at: at})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		if e.ask == nil {
			alg.Reset()
			continue
		}
		n, from := e.ask.Left(at), e.at
		if _, bucket := alg.(*oracle.Bucket); !bucket { // which counts what was granted too early
			from = max(from, alg.Free(from, n, e.ask.Least)%oracle.Never)
		}
		alg.Grant(from, n, e.ask.Least)
	}
	if b, bucket := alg.(*oracle.Bucket); bucket {
		return b.Behind(at, a.N, a.Least)
	}
	return alg.Free(at, a.N, a.Least)
}
