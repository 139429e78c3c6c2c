package semaphore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// This file makes taking and adding plain permits happen exactly once. The permits are a bare number, so the number cannot tell whether a
// call whose reply was lost has been executed. Redis keeps for every process and semaphore the sequence number of
// its last acquiring and of its last releasing call. As there is at most one of each under way, a call that comes again is
// recognised, a call that comes too late is refused, and the next call says how far the process knows what happened: what was taken beyond
// that is given back, what was to be added beyond that is added.

// lateFor is how long something that Redis did not confirm is tried in the background.
const lateFor = 5 * time.Minute

// addition is one release.
type addition struct {
	n        int64
	ifExists bool
	max      int64
	ours     bool   // of one who has gone: nobody else would repeat it
	seq      uint64 // 0 until it is sent
	code     int64  // what the script said
	until    time.Time
}

// debts is what this process does not know about its calls, by semaphore.
type debts struct {
	mu       sync.Mutex
	acquired map[string]doubt
	added    map[string][]*addition // sent and not confirmed
	asking   map[string]bool        // a wheel entry or a call will ask
}

// doubt is about calls that may have taken permits.
type doubt struct {
	confirmed uint64 // the last call of which the outcome is known
	until     time.Time
}

// attemptPlain is the Attempt of counting semaphores.
func (c *Client) attemptPlain(name string, batch []*waitqueue.Waiter[int64]) (time.Duration, error) {
	seq := c.nth.Add(1)
	confirmed := c.debts.confirmed(name, seq)
	keys := []string{name, c.lane(name, "acquiring")}
	args := []any{seq, confirmed, laneMillis, publish, scripts.SemChannel(name)}
	for _, w := range batch {
		args = append(args, w.Value)
	}
	r := c.run(nil, scripts.SemAcquire, keys, args...)
	v, err := r.Int64Slice()
	if err == nil && len(v) != 3 {
		err = fmt.Errorf("unexpected reply %v", v)
	}
	if err != nil {
		if r.Ambiguous {
			c.debts.note(name, confirmed)
			c.settleLater(name)
		}
		if err = operationError("acquire", name, err); calls.Migrating(r.Err()) {
			return wait(batch, err), nil
		}
		return 0, err
	}
	c.debts.clear(name)
	for i, w := range batch {
		switch {
		case i < int(v[0]):
			w.Grant()
		case v[1] == 0:
			w.Fail(fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name)))
		}
	}
	return 0, nil
}

// giveBackPlain returns permits that nobody waits for any more.
func (c *Client) giveBackPlain(name string, granted []int64) {
	var sum int64
	for _, n := range granted {
		sum += n
	}
	if sum > 0 {
		c.gate.EnterInside()
		c.additions.WaitFunc(context.Background(), name, &addition{n: sum, ours: true}, func(*addition, error) { c.gate.Leave() })
	}
}

// add queues a release and waits for it until ctx ends.
func (c *Client) add(ctx context.Context, name string, a *addition) (code int64, err error) {
	if ctx.Done() == nil {
		a, err = c.additions.Wait(ctx, name, a)
		return codeOf(a), unconfirmed("release", name, err)
	}
	done := make(chan error, 1)
	c.gate.EnterInside()
	c.additions.WaitFunc(context.WithoutCancel(ctx), name, a, func(_ *addition, err error) {
		c.gate.Leave()
		done <- err
	})
	patience, stop := c.patience(ctx)
	defer stop()
	select {
	case err = <-done:
		return codeOf(a), unconfirmed("release", name, err)
	case <-patience:
		return 0, unconfirmed("release", name, calls.Ended(ctx))
	}
}

func codeOf(a *addition) int64 {
	if a == nil {
		return 0
	}
	return a.code
}

// patience is closed a while after ctx has ended.
func (c *Client) patience(ctx context.Context) (<-chan struct{}, func()) {
	const grace = time.Second
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if _, err := c.wheel.AfterFunc(grace, func() { close(over) }); err != nil {
			close(over)
		}
	})
	return over, func() { stop() }
}

// unconfirmed says what a failed release means.
func unconfirmed(operation, name string, err error) error { //nolint:unparam // names what is unconfirmed
	switch {
	case err == nil:
		return nil
	case calls.Final(err), errors.Is(err, ErrUnconfirmed):
		return operationError(operation, name, err)
	default:
		return fmt.Errorf("%w: %s %s: %w", ErrUnconfirmed, operation, scripts.Quote(name), err)
	}
}

// attemptAdditions is the Attempt of releases. What it cannot confirm it keeps for the next.
func (c *Client) attemptAdditions(name string, batch []*waitqueue.Waiter[*addition]) (time.Duration, error) {
	all := c.debts.unconfirmed(name)
	kept := len(all)
	for _, w := range batch {
		if w.Value.seq == 0 {
			w.Value.seq, w.Value.until = c.nth.Add(1), time.Now().Add(lateFor)
		}
		all = append(all, w.Value)
	}
	for from := 0; from < len(all); from += maxBatch {
		codes, doubt, err := c.addNow(name, all[from:min(from+maxBatch, len(all))])
		if err != nil {
			if calls.Final(err) && doubt {
				err = fmt.Errorf("%w: %w", ErrUnconfirmed, err) // an unanswered copy of the call may have been executed
			}
			c.debts.owe(name, stillOwed(all[from:], max(kept-from, 0), err))
			c.settleLater(name)
			return 0, err
		}
		for i, code := range codes {
			if at := from + i - kept; at >= 0 {
				batch[at].Value.code = code
				batch[at].Grant()
			}
		}
	}
	c.debts.owe(name, nil)
	return 0, nil
}

// addNow runs the script of releases. Doubt says that a copy of the call was not answered.
func (c *Client) addNow(name string, some []*addition) (codes []int64, doubt bool, err error) {
	keys := []string{name, c.lane(name, "releasing")}
	args := []any{laneMillis, publish, scripts.SemChannel(name)}
	for _, a := range some {
		only := 0
		if a.ifExists {
			only = 1
		}
		args = append(args, a.seq, a.n, only, a.max)
	}
	r := c.run(nil, scripts.SemRelease, keys, args...)
	codes, err = r.Int64Slice()
	if err == nil && len(codes) != len(some) {
		err = fmt.Errorf("unexpected reply %v", codes)
	}
	return codes, r.Ambiguous, err
}

// stillOwed are those of unconfirmed additions, the first of which are known to be, that go on in the background after an error. One
// that was refused has failed for its caller, who may repeat it.
func stillOwed(all []*addition, known int, err error) (owed []*addition) {
	refused := calls.Final(err) && !errors.Is(err, ErrUnconfirmed)
	for i, a := range all {
		if a.n > 0 && (i < known || a.ours || !refused) {
			owed = append(owed, a)
		}
	}
	return owed
}

// settleLater sees to it that somebody learns, after a pause, what became of unconfirmed calls.
func (c *Client) settleLater(name string) {
	if c.debts.ask(name) {
		c.settleIn(name, 250*time.Millisecond)
	}
}

func (c *Client) settleIn(name string, pause time.Duration) {
	_, err := c.wheel.AfterFunc(pause/2+rand.N(pause/2), func() {
		if !c.gate.Enter() {
			return // Close asks
		}
		defer c.gate.Leave()
		if c.debts.expire(name, time.Now()) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn, "gave up confirming permits", slog.String("name", name))
		}
		c.settle(context.Background(), name)
		if !c.debts.settled(name) {
			c.settleIn(name, min(2*pause, 5*time.Second))
		}
	})
	if err != nil {
		c.debts.leaveOff(name)
		c.logger.LogAttrs(context.Background(), slog.LevelWarn, "permits stay unconfirmed until the next call",
			slog.String("name", name), slog.Any("error", err))
	}
}

// settle makes calls that carry nothing but the question.
func (c *Client) settle(ctx context.Context, name string) {
	c.debts.mu.Lock()
	_, acquired := c.debts.acquired[name]
	added := len(c.debts.added[name]) > 0
	c.debts.mu.Unlock()
	if acquired {
		_, _ = c.plain.Try(ctx, name, 0) // whoever else waits asks as well
	}
	if added {
		_, _ = c.additions.Try(ctx, name, &addition{ifExists: true})
	}
}

// settleAll asks about everything once more, when the queues of waiters are closed, and a few times again about what nobody else would
// ever give back.
func (c *Client) settleAll(ctx context.Context) error {
	pause := 100 * time.Millisecond
	for {
		left := c.debts.names()
		for _, name := range left {
			if ctx.Err() != nil {
				break
			}
			_, _ = c.attemptPlain(name, nil)
			_, _ = c.additions.Try(ctx, name, &addition{ifExists: true})
		}
		left = c.debts.names()
		if len(left) == 0 {
			return nil
		}
		if pause > time.Second || c.wheel.Sleep(ctx, pause) != nil {
			return fmt.Errorf("releases of %d semaphores were not confirmed: %w", len(left), ErrUnconfirmed)
		}
		pause *= 2
	}
}

// confirmed is the last call before seq of which the outcome is known.
func (d *debts) confirmed(name string, seq uint64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if open, ok := d.acquired[name]; ok {
		return open.confirmed
	}
	return seq - 1
}

func (d *debts) note(name string, confirmed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.acquired[name]; ok {
		return
	}
	if d.acquired == nil {
		d.acquired = make(map[string]doubt)
	}
	d.acquired[name] = doubt{confirmed, time.Now().Add(lateFor)}
}

func (d *debts) clear(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.acquired, name)
}

func (d *debts) unconfirmed(name string) []*addition {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*addition(nil), d.added[name]...)
}

func (d *debts) owe(name string, all []*addition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(all) == 0 {
		delete(d.added, name)
		return
	}
	if d.added == nil {
		d.added = make(map[string][]*addition)
	}
	d.added[name] = all
}

// ask reports whether the caller is the one to ask.
func (d *debts) ask(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asking[name] {
		return false
	}
	if d.asking == nil {
		d.asking = make(map[string]bool)
	}
	d.asking[name] = true
	return true
}

// leaveOff ends the asking although something may be left to ask.
func (d *debts) leaveOff(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.asking, name)
}

// settled reports whether nothing is left to ask, and if so ends the asking.
func (d *debts) settled(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, acquired := d.acquired[name]; acquired || len(d.added[name]) > 0 {
		return false
	}
	delete(d.asking, name)
	return true
}

// names are the semaphores about which something is not known.
func (d *debts) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := slices.Collect(maps.Keys(d.acquired))
	for name := range d.added {
		if _, both := d.acquired[name]; !both {
			open = append(open, name)
		}
	}
	return open
}

// expire forgets what has been tried for too long.
func (d *debts) expire(name string, now time.Time) (expired bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if open, ok := d.acquired[name]; ok && now.After(open.until) {
		delete(d.acquired, name)
		expired = true
	}
	var keep []*addition
	for _, a := range d.added[name] {
		if now.After(a.until) {
			expired = true
		} else {
			keep = append(keep, a)
		}
	}
	if len(keep) == 0 {
		delete(d.added, name)
	} else {
		d.added[name] = keep
	}
	return expired
}
