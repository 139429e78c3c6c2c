package keys

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

const (
	// lookEvery is the longest time between two looks of a line for which no permits are coming: another
	// process may have given permits back, raised the limit or deleted it.
	lookEvery = time.Second
	// lookPeriod is the average time between two scripts of a line that uses the limit up; some may follow
	// sooner.
	lookPeriod = 10 * time.Millisecond
	earlyLooks = 8
	// nearPlaces is how far ahead the last place of a process may be for it to reserve another one. A process that dies
	// blocks as much of the limit, or one place.
	nearPlaces = 100 * time.Millisecond
	// latePlaces is how late permits may be used that waiters have reserved: longer, and the process was paused.
	latePlaces = 100 * time.Millisecond
	// maxRenewed is the maximum number of stretches that a look reserves anew.
	maxRenewed = 16
	// horizon is how early permits are charged for waiters before they can be used, if Redis answers at once. A
	// process that dies loses at most that many.
	horizon = 2 * lookPeriod
	// maxHorizon bounds horizon if Redis is slow.
	maxHorizon = time.Second
	// firstBackPause is the pause before permits are given back again. It doubles up to longestBackPause.
	firstBackPause, longestBackPause = 250 * time.Millisecond, time.Minute
	// maxLooked is the maximum number of waiters in one script, and maxRuns that of their runs.
	maxLooked, maxRuns = 4096, 256
	// loginPatience is how long waiters that have begun endure a refused login: as long as a lease lasts by default.
	// The pauses between their looks grow to maxLoginPause.
	loginPatience, maxLoginPause = 30 * time.Second, 5 * time.Second
)

// Never is later than any time.
const Never = time.Duration(math.MaxInt64)

// Waiter is one Wait in progress.
type Waiter struct {
	N        int64
	Since    time.Duration // on the Client's clock
	Deadline time.Duration // never if there is none
	place    int64         // permits requested by all waiters up to and with this one, since the line was made
	source   algo.Source   // who granted it
	checked  bool          // it can be served before its deadline, as far as is known

	End        func(error) // gives it the outcome; must not block
	ended      bool
	prev, next *Waiter
}

// Line has the waiters of one key, in order of arrival, and the permits that were charged for them. Permits
// belong to the line, not to a waiter: when a waiter leaves, its permits serve the waiters behind it, within
// the limit.
//
// A line that has to wait for its limit charges permits some milliseconds before they can be used: as many as
// its waiters need, and as many as further waiters will probably need until the next look. So it needs one
// script every lookPeriod, not one for each permit, and no permit is lost to the time that a script and a
// goroutine take. Permits that can be reserved are charged when a waiter comes: see servePlaces and reserveAt.
//
// It is pure: it has no lock, timer or clock, and sends nothing.
type Line struct {
	first, last *Waiter
	came, gone  int64         // permits requested by all waiters so far, and by those that are gone
	waits       map[int64]int // waiters for a number of permits
	unchecked   int           // waiters not checked yet
	emptied     time.Duration // when the last waiter left
	Charged     charged

	looking   bool          // a script is in flight
	alone     []*Waiter     // those of its requests that are alone
	lookedAt  time.Duration // when it was sent
	took      time.Duration // how long scripts take
	contended bool          // the last look found that the limit is used up
	paidUntil time.Duration // the looks so far have used the time until then: each uses a lookPeriod
	retryAt   time.Duration // not before, while Redis is down
	answered  time.Duration // when the last look was sent that was answered: waiters who were there have begun
	trouble   redisconn.Endurance
	again     bool  // the last look failed, and may not be sent again as it was
	changed   bool  // the next look comes soon
	used      int64 // permits handed out since the last look, and
	lost      int64 // permits lost before it

	backAt    time.Duration // not before, permits are given back that could not be
	backPause time.Duration // the last pause before that, or 0 if the last script was answered

	ahead ahead // if permits can be reserved
}

// ahead is the part of a line that reserves places.
type ahead struct {
	end     algo.GCRATime // of the last place
	crowded bool          // others have taken the places that followed it
	denied  bool          // the last look reserved nothing for those that have no place
	pause   time.Duration // until the next look then
	left    bool          // a waiter has left since places were counted
	trimmed time.Duration // when places that no waiter needs were first to be given back; never if there are none
	renewed time.Duration // when the places were last reserved anew
	seeks   bool          // the look tells whether there are permits before the first place
	earlier bool          // there were
}

// NewLine returns a line without waiters.
func NewLine(a algo.Algorithm) *Line {
	return &Line{
		Charged: charged{algorithm: a}, lookedAt: -Never / 2, paidUntil: -Never / 2, answered: -Never,
		ahead: ahead{trimmed: Never, renewed: -Never / 2}, waits: map[int64]int{},
	}
}

// Push adds a waiter, unless it cannot be served before its deadline.
func (l *Line) Push(w *Waiter, now time.Duration, k *Knowledge) bool {
	w.place = l.came + w.N
	if w.checked = k.fresh(now); !w.checked {
		l.unchecked++
	} else if l.missesDeadline(w, now, k) {
		return false
	}
	l.came = w.place
	l.waits[w.N]++
	w.prev = l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	return true
}

// Leave removes a waiter that was not served, unless it has ended, and reports whether it did.
func (l *Line) Leave(w *Waiter, now time.Duration) bool {
	if w.ended {
		return false
	}
	l.unlink(w, now)
	l.ahead.left = true
	return true
}

// finish removes a waiter and gives it its outcome.
func (l *Line) finish(w *Waiter, now time.Duration, err error) {
	l.unlink(w, now)
	w.End(err)
}

func (l *Line) unlink(w *Waiter, now time.Duration) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.ended = nil, nil, true
	l.gone += w.N
	if l.waits[w.N]--; l.waits[w.N] == 0 {
		delete(l.waits, w.N)
	}
	if !w.checked {
		l.unchecked--
	}
	if l.first == nil {
		l.emptied = now
	}
}

// finishSince ends the waiters that came later than begun, but not after sent.
func (l *Line) finishSince(begun, sent, now time.Duration, err error) {
	for w := l.first; w != nil && w.Since <= sent; {
		next := w.next
		if w.Since > begun {
			l.finish(w, now, err)
		}
		w = next
	}
}

// finishAll ends every waiter.
func (l *Line) finishAll(now time.Duration, err error) {
	for l.first != nil {
		l.finish(l.first, now, err)
	}
}

// Step is the next action of a line.
type Step struct {
	Look     bool          // ask Redis for the permits of Look
	GiveBack bool          // there are no waiters: give prepaid permits back
	Wake     time.Duration // unless it gives back: call Advance again at that time
}

// Advance serves the waiters whose permits can be used, and returns the next action.
func (l *Line) Advance(now time.Duration, k *Knowledge) Step {
	due := l.Serve(now)
	switch {
	case l.looking:
		return Step{Wake: due}
	case l.first == nil:
		if l.Charged.N == 0 && len(l.Charged.back) == 0 {
			return Step{Wake: Never}
		}
		at := max(l.emptied+l.Charged.keep(), l.backAt)
		return Step{GiveBack: at <= now, Wake: at}
	}
	at := l.lookAt(now, k)
	return Step{Look: at <= now, Wake: min(due, at)}
}

// Serve serves waiters, and returns when the permits of the first remaining waiter can be used, if they are
// charged.
func (l *Line) Serve(now time.Duration) time.Duration {
	if l.Charged.reserves() {
		return l.servePlaces(now)
	}
	for w := l.first; w != nil; w = l.first {
		at, missing := l.Charged.ready(w.N, w.Since)
		if missing > 0 {
			if l.Charged.atOnce() {
				l.Charged.ready(w.N, now) // drops permits of a window that ends before the missing ones can come
			}
			break
		}
		if at > now {
			return at
		}
		l.Charged.Use(w.N)
		l.used += w.N
		l.finish(w, now, nil)
	}
	return Never
}

// lookAt returns the time of the next script.
func (l *Line) lookAt(now time.Duration, k *Knowledge) time.Duration {
	if l.Charged.reserves() {
		return l.reserveAt(now)
	}
	var missing int64
	for _, missing = range l.uncovered {
		break
	}
	switch {
	case missing == 0:
		return Never
	case !k.fresh(now) && l.changed:
		return max(now, l.retryAt, algo.Plus(l.lookedAt, lookPeriod))
	case !k.fresh(now):
		return max(now, l.retryAt)
	}
	at := now
	switch {
	case l.Charged.atOnce():
		at = now + k.Wait(missing, now-k.Took) // Redis may have read its clock that late
	case len(l.Charged.back) == 0: // the permits given back may suffice for the waiters
		lead := 2*l.took + 3*time.Millisecond + rand.N(5*time.Millisecond) // random, so that processes take turns
		at = now + k.Wait(missing, now) - lead
	}
	at = min(at, l.lookedAt+lookEvery)
	if l.contended {
		at = max(at, l.paidUntil-(earlyLooks-1)*lookPeriod)
	}
	return max(at, l.retryAt)
}

// uncovered yields the waiters for which not all permits are charged, and how many are missing.
func (l *Line) uncovered(yield func(*Waiter, int64) bool) {
	c := &l.Charged
	if c.reserves() {
		l.withoutPlace(yield)
		return
	}
	have, spans := c.N, c.spans
	if l.came-l.gone <= have && !c.whole() {
		return
	}
	for w := l.first; w != nil; w = w.next {
		if c.whole() { // each waiter takes one span
			if len(spans) > 0 && spans[0].N == w.N {
				spans = spans[1:]
				continue
			}
			spans, have = nil, 0
		}
		if have >= w.N {
			have -= w.N
			continue
		}
		if !yield(w, w.N-have) {
			return
		}
		have = 0
	}
}

// Look records that a script is sent, and returns what it asks for.
func (l *Line) Look(now time.Duration) (a algo.Request, back algo.Settlement) {
	if l.contended {
		l.paidUntil = max(l.paidUntil, now) + lookPeriod
	}
	a.InOrder, a.Ahead = true, min(horizon+2*l.took, maxHorizon)
	if l.Charged.reserves() {
		a.Ahead = nearPlaces + 2*l.took
		l.renew(now)
		a.Holds = l.Charged.N > 0
	}
	l.changed = false
	back.Back, l.Charged.back, l.ahead.trimmed, l.alone = l.Charged.back, nil, Never, l.alone[:0]
	unit, most, n := int64(1), int64(maxLooked), int64(0)
	switch {
	case l.Charged.reserves():
		unit = l.first.N
	case l.Charged.whole():
		unit, most = l.first.N, maxBatch
	case l.Charged.atOnce():
		most = maxBatch
	}
	for w, missing := range l.uncovered {
		r := l.request(w, missing, now)
		if a.Add(r); r.Alone {
			l.alone = append(l.alone, w)
		}
		n, unit, most = n+missing, min(unit, w.N), most-1
		if most == 0 || len(a.Runs) == maxRuns {
			break
		}
	}
	// Waiters that the last look served come back, and further waiters with them.
	coming := l.used
	if l.Charged.lost == l.lost {
		coming *= 2
	}
	if coming -= n + l.Charged.N; l.contended && !l.ahead.crowded && coming >= unit && !l.Charged.atOnce() {
		if l.Charged.whole() {
			coming = min(coming, most*unit)
		}
		if a.Coming = coming / unit; a.Coming > 0 {
			a.Add(algo.Run{N: unit, Count: a.Coming, Within: l.comingWithin()})
		}
	}
	l.looking, l.lookedAt, l.used, l.lost = true, now, 0, l.Charged.lost
	return a, back
}

// Looked records the answer to a look.
func (l *Line) Looked(a *algo.Ask, got algo.Answer, at algo.Reading) {
	l.looking, l.retryAt, l.backAt, l.backPause, l.answered = false, 0, 0, 0, at.Sent
	l.trouble.Answered()
	l.took = max(at.Got-at.Sent, l.took*3/4)
	l.contended, l.again = false, false
	l.Charged.adopt(got.Period)
	asked, alone := false, l.alone
	for k, r := range a.Runs {
		l.contended = l.contended || got.Granted[k] < r.Count
		asked = asked || got.Granted[k] != algo.Hopeless
		if !r.Alone {
			continue
		}
		if w := alone[0]; got.Granted[k] == algo.Hopeless && !w.ended {
			l.finish(w, at.Got, ErrWouldExceedDeadline)
		}
		alone = alone[1:]
	}
	l.ahead.denied = asked && len(got.Spans) == 0
	l.ahead.pause = lookEvery/2 + rand.N(lookEvery/2) // processes take turns
	if last := len(got.Spans) - 1; last >= 0 {
		l.contended = l.contended || l.Charged.usable(got.Spans[last]) > at.Got
	}
	if len(got.Spans) > 0 && l.Charged.reserves() {
		l.ahead.crowded = got.Spans[0].Start != l.ahead.end
		last := got.Spans[len(got.Spans)-1]
		l.Charged.algorithm.Skip(&last, last.N)
		l.ahead.end = last.Start
	}
	l.Charged.Add(got.Spans...)
	if held := l.Charged.spans; l.ahead.seeks && len(held) > 0 {
		first, _ := l.Charged.placeAt(&held[0])
		l.ahead.earlier = at.Got+got.Snapshot.Wait(held[0].Unit, 0) < first-time.Millisecond
	}
}

// begin records that a script is to be sent: its requests are collected when it is.
func (l *Line) begin() { l.looking = true }

// lookAgain makes the next look one without what a failed one was to give back, as it would have been repeated.
func (l *Line) lookAgain() { l.again = true }

// anew makes the line look soon: the state has changed, or permits were given back.
func (l *Line) anew() { l.retryAt, l.changed = 0, true }

// failed records that a look was not answered; the next look follows after a pause.
func (l *Line) failed(retryAt time.Duration) { l.looking, l.retryAt = false, retryAt }

// endures reports whether waiters that have begun go on after a refused login. Those that came before the first refusal
// behind one that had begun have begun too: no look asked for them at once.
func (l *Line) endures(err error, at time.Time, now time.Duration) bool {
	if l.trouble.Refused().IsZero() && l.first != nil && l.first.Since <= l.answered {
		l.answered = now
	}
	return l.trouble.Endures(err, at, loginPatience)
}

// giveBackLater defers the return of permits that could not be given back, each time for longer.
func (l *Line) giveBackLater(now time.Duration) {
	l.backPause = min(max(2*l.backPause, firstBackPause), longestBackPause)
	l.backAt = now + l.backPause/2 + rand.N(l.backPause/2)
}

// Refuse ends the waiters that ask for more than the limit, and those that cannot be served before their
// deadlines after the waiters ahead of them, as far as is known.
func (l *Line) Refuse(now time.Duration, k *Knowledge, limit int64) {
	left := 64 // waiters at the front are checked again
	for w := l.first; w != nil && (left > 0 || l.unchecked > 0); left-- {
		next := w.next
		l.check(w, now, k, limit)
		w = next
	}
}

// check ends a waiter that would wait in vain.
func (l *Line) check(w *Waiter, now time.Duration, k *Knowledge, limit int64) {
	if !w.checked {
		w.checked = true
		l.unchecked--
	}
	switch {
	case w.N > limit:
		l.finish(w, now, ErrExceedsLimit)
	case l.missesDeadline(w, now, k):
		l.finish(w, now, ErrWouldExceedDeadline)
	}
}

// missesDeadline reports whether a waiter cannot be served before its deadline.
func (l *Line) missesDeadline(w *Waiter, now time.Duration, k *Knowledge) bool {
	if w.Deadline == Never || !k.fresh(now) {
		return false
	}
	// Prepaid permits serve some waiters ahead of it, and so may the permits for waiters behind it that are
	// gone.
	total := max(w.N, w.place-l.gone) - l.Charged.N
	if total <= 0 {
		return false
	}
	wait := k.Wait(total, now)
	if l.Charged.N == 0 { // the one request needs its permits at once, whoever is ahead
		if r, denied := k.Snapshot.CachedDenial(w.N, now-k.Sent); denied {
			wait = max(wait, r.RetryAfter)
		}
	}
	return wait > w.Deadline-now
}

// Knowledge is the last answer of Redis about a key.
type Knowledge struct {
	Snapshot algo.Snapshot // nil: none
	Sent     time.Duration
	Took     time.Duration
}

// fresh reports whether the answer still holds: another process may give permits back or raise the limit.
func (k *Knowledge) fresh(now time.Duration) bool {
	return k.Snapshot != nil && now-k.Sent <= maxDenyFor
}

// Wait returns a lower bound of the time from now until total permits are available.
func (k *Knowledge) Wait(total int64, now time.Duration) time.Duration {
	return min(max(0, k.Snapshot.Wait(total, now-k.Sent)), math.MaxInt64/2) // so that sums do not overflow
}
