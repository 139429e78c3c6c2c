package sim

import (
	"sync"
	"time"
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
	for _, p := range w.slots {
		if p.isUp() {
			w.end(p)
		}
	}
	if !w.within(time.Minute+closeLimit, &w.operating) {
		w.stuck("a call returns after Close")
	}
	w.remains()
	w.admin.close()
	w.admin.shut()
	w.within(closeLimit, &w.shuts)
	w.server.redis.Close()
	time.Sleep(10 * time.Second) // goroutines of go-redis may outlast their pool
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
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	for _, l := range w.net.links {
		l.lostCalls, l.lostReply, l.late = loss{}, loss{}, loss{}
		l.cut, l.frozen = time.Time{}, time.Time{}
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

// closed notes how long a Close took.
func (w *world) closed(p *process, what string, took time.Duration, err error) {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if limit := w.Lease + w.Lease/4 + time.Second + 20*w.Most; !dead && took > limit {
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
