package sim

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// finish lets the operations end in peace, and then the processes.
func (w *world) finish() {
	time.Sleep(w.Length)
	w.injecting.Wait()
	w.heal()
	w.mu.Lock()
	w.calm = w.since()
	w.mu.Unlock()
	if !w.within(w.patience(), &w.operating) && !w.has("server's clock steps") { // leases may last for an hour then
		w.stuck("a call returns")
	}
	w.releases()
	for _, p := range w.slots {
		if p.isUp() {
			w.end(p)
		}
	}
	if !w.within(time.Minute+closeLimit, &w.operating) {
		w.stuck("a call returns after Close")
	}
	w.drain()
	w.remains()
	w.admin.close()
	w.admin.shut()
	w.within(closeLimit, &w.shuts)
	w.server.close()
	if w.sentinel != nil {
		w.sentinel.redis.Close()
	}
	time.Sleep(10 * time.Second) // goroutines of go-redis may outlast their pool
}

// releases looks whether releases that failed were sent again when the faults had ended, unless their leases had too.
func (w *world) releases() {
	refused := func(f Fault) bool { return faultOf(f.Kind).mistake && f.Kind != passwordRotated }
	if w.losesData() || slices.ContainsFunc(w.Faults, refused) || w.has("hook panics") {
		return
	}
	recovery := w.slack()
	if w.only(func(k *FaultKind) bool { return k.unknown || k.Name == passwordRotated }) { // no message is lost
		recovery = 0
	}
	w.mu.Lock()
	unsent, spans, slack := w.unsent, w.spansOf(recovery), int64(recovery+6*time.Second)
	w.mu.Unlock()
	slices.SortFunc(spans, func(a, b check.Span) int { return cmp.Compare(a.From, b.From) })
	for _, r := range unsent {
		due := r.returned + slack
		for _, s := range spans {
			if s.From <= due {
				due = max(due, s.To+slack)
			}
		}
		counting := w.Objects[r.object].Kind == "counting permits"
		if !counting && r.called+int64(w.Lease) < due {
			continue
		}
		if time.Sleep(time.Duration(due - w.since())); !r.process.isUp() {
			continue
		}
		name := w.Objects[r.object].Name
		sent := func(e execution) bool {
			return strings.HasSuffix(e.name, "release") && e.link == r.process.link.number &&
				e.at > r.called && e.at < due && e.ran && !e.refused &&
				strings.Contains(strings.Join(e.keys, " "), name)
		}
		w.server.mu.Lock()
		again := slices.ContainsFunc(w.server.executed, sent)
		w.server.mu.Unlock()
		if !again {
			w.faultf("a release that fails is sent again", name, "that of #%d failed at %v, and was not sent until %v",
				r.id, time.Duration(r.returned), time.Duration(due))
		}
	}
}

// patience is how long operations may need after the last fault: each holds its object for a while, one after the
// other, and a limit lets some of them pass in each period.
func (w *world) patience() time.Duration {
	sum := 2*w.Lease + w.slack() + time.Minute
	for _, o := range w.Ops {
		limit := w.Objects[o.Object].Limit
		sum += o.Hold + time.Duration(o.N)*limit.Per + 100*time.Millisecond
	}
	return sum
}

// heal ends all faults.
func (w *world) heal() {
	w.server.heal()
	for _, p := range w.slots {
		p.panics.arm(0, nil)
		p.learn()
	}
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	for _, l := range w.net.links {
		l.lostCalls, l.lostReply, l.late, l.lostMessages = loss{}, loss{}, loss{}, loss{}
		l.cut, l.frozen, l.slowBefore = time.Time{}, time.Time{}, time.Time{}
	}
	w.net.hangs, w.net.down = time.Time{}, false
	w.net.wakeLocked()
}

// within waits for a while, and reports whether all were done.
func (w *world) within(d time.Duration, all *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// stuck reports the operations that have not returned.
func (w *world) stuck(promise string) {
	w.mu.Lock()
	var stuck []*activity
	for a := range w.active {
		stuck = append(stuck, a)
	}
	w.mu.Unlock()
	for _, a := range stuck {
		w.faultf(promise, w.Objects[a.object].Name, "%s, called at %v, has not returned %v after all faults ended",
			a.what, time.Duration(a.since), time.Duration(w.since()-w.calm).Round(time.Second))
	}
}

// dials is how often go-redis tries to connect.
const dials = 5

// closed notes how long a Close took.
func (w *world) closed(p *process, what string, took time.Duration, err error) {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	longest := w.Lease + w.Lease/4
	switch what {
	case "fair leased permits": // a place in the queue in Redis may last longer
		longest = max(longest, 3*w.Poll+time.Second)
	case "counting permits": // which have no leases
		longest = max(longest, 10*time.Second)
	case tasksKind: // handlers end first
		w.mu.Lock()
		longest += w.longestTaskLocked()
		w.mu.Unlock()
	}
	limit := longest + time.Second + 20*w.Most
	if what == "limits" { // which have no leases: a call on its way ends by the timeouts of the client
		patience := w.Timeout * time.Duration(max(w.Retries, 0)+1) // a change of a limit is repeated
		if w.has("network parted") {
			patience *= dials
		}
		limit = max(limit, patience+time.Second+20*w.Most)
	}
	if !dead && took > limit && !w.has("process stands still") {
		w.faultf("Close takes little longer than the longest lease", what, "it took %v, with a lease of %v: %v",
			took, w.Lease, err)
	}
	if took >= closeLimit {
		w.faultf("Close returns", what, "not within %v", closeLimit)
	}
}

// slack is for how long a lost message or a connection without an answer may hold a call up.
func (w *world) slack() time.Duration {
	return w.Timeout*time.Duration(max(w.Retries, 0)+1) + 2*time.Second + 10*w.Most
}
