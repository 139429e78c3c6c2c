package redislock

import "time"

// Event is what happened to a lock. Name is always set; the other fields name the hooks that set them.
type Event struct {
	Name  string
	Token int64         // Acquired, Lost, Released: the fencing token, 0 without one
	Took  time.Duration // Acquired: the wait; Renewed: the call; Lost, Released: since the lock was taken
	TTL   time.Duration // Contended: as LockedError.TTL
	Err   error         // Lost: why
}

// Hooks are functions that are called for what happens to the locks of a Client, for metrics and traces. Each
// may be nil. They run where the event happens, several at a time, and must return soon: Lost and Renewed run
// on the goroutines that renew leases. They must not use the lock or the Client.
type Hooks struct {
	Acquired  func(Event) // a call got the lock
	Contended func(Event) // a call found the lock held, once per call
	Renewed   func(Event) // the watchdog renewed the lock
	Lost      func(Event) // the lock ended before it was unlocked
	Released  func(Event) // Unlock or Close released the lock; Redis may not have confirmed it
}

func (h *Hooks) acquired(l *Lock, took time.Duration) {
	if h.Acquired != nil {
		h.Acquired(Event{Name: l.name(), Token: l.token, Took: took})
	}
}

func (h *Hooks) contended(e *LockedError) {
	if h.Contended != nil {
		h.Contended(Event{Name: e.Name, TTL: e.TTL})
	}
}

func (h *Hooks) lost(l *Lock, err error) {
	if h.Lost != nil {
		h.Lost(Event{Name: l.name(), Token: l.token, Took: l.client().since(l.madeAt), Err: err})
	}
}

func (h *Hooks) released(l *Lock) {
	if h.Released != nil {
		h.Released(Event{Name: l.name(), Token: l.token, Took: l.client().since(l.madeAt)})
	}
}
