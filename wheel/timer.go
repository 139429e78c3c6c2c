package wheel

import "time"

// Timer is the handle of one scheduled entry: a small comparable value, copied freely and safe for concurrent
// use. The zero Timer, which calls return with an error, and any Timer whose entry has fired, was stopped or
// was returned by the wheel's Stop, is expired. An expired handle stays harmless for ever: it does not reach
// entries scheduled later, even where they reuse the same memory (unless it is kept while the same memory is
// reused 2^32 times).
type Timer struct {
	shard *shard
	index uint32
	gen   uint32
}

// Stop ends the entry before it fires. It returns true if it did: the callback will not run, and its memory
// is free for reuse at once. It returns false if the entry had already ended: its callback has begun or is
// about to, as with time.Timer, or it was stopped or returned by the wheel's Stop. An entry that is due and
// waits for its turn, or for the task of an ExecutorFunc to be called, can still be stopped. For an entry of
// Every or Schedule, true means that no further firing begins; one may be in progress. Stop never waits for a
// callback.
func (t Timer) Stop() bool { return t.shard != nil && t.shard.stop(t.index, t.gen) }

// Reschedule moves the deadline of a pending entry to d from now: as soon as possible if d is zero or less. It
// returns true if the entry was pending. An entry that is due and waits for its turn is still pending.
//
// Unlike Reset of a time.Timer, it cannot revive an expired Timer: it then returns false, and nothing is
// scheduled. Schedule a new entry instead. So inside the callback of an AfterFunc it returns false. For an entry of
// Every or Schedule it moves the next firing, and returns true until the entry ends; while a firing is in
// progress, it moves the firing after that one.
//
// It needs no error: a pending entry already counts in WithMaxPendingTimeouts, and those of a stopped wheel are
// expired. It is safe for concurrent use and does not block; of concurrent calls, the last one counts. A move to a
// later time is cheaper than Stop and AfterFunc, because the entry stays in its bucket until the old deadline.
func (t Timer) Reschedule(d time.Duration) bool {
	return t.shard != nil && t.shard.reschedule(t.index, t.gen, d)
}

// Pending reports whether the entry is still to fire, which entries of Every and Schedule are until they end.
func (t Timer) Pending() bool { return t.shard != nil && t.shard.pending(t.index, t.gen) }
