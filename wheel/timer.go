package wheel

import "time"

// Timer is the handle of one scheduled entry: a small comparable value that can be copied freely and is safe for
// concurrent use. A Timer has ended if its entry has fired, was stopped or was ended by the wheel's Stop. The zero
// Timer, which calls return with an error, has ended too. A Timer that has ended never affects entries that are
// scheduled later, even if they reuse its memory (unless it is kept until the same memory is reused 2^32 times).
type Timer struct {
	shard *shard
	index uint32
	gen   uint32
}

// Stop ends the entry before it fires. It returns true if this call ended it: the callback will not run, and
// its memory is free for reuse at once. It returns false if the entry had already ended: its callback has begun
// or is about to, as with time.Timer, or it was stopped or returned by the wheel's Stop. An entry can still be
// stopped while it is due and waits for its turn, or for a call of its task of an ExecutorFunc. For an entry of
// Every, Repeat or Schedule, true means that no further firing begins; one may be in progress. Stop never waits
// for a callback.
func (t Timer) Stop() bool { return t.shard != nil && t.shard.stop(t.index, t.gen) }

// Reschedule moves the deadline of a pending entry to d from now, or to as soon as possible if d is zero or less. It
// returns true if the entry was pending. An entry that is due and waits for its turn is still pending.
//
// Unlike Reset of a time.Timer, Reschedule cannot revive a Timer that has ended: it returns false, and nothing is
// scheduled. Schedule a new entry instead. So it returns false inside the callback of an AfterFunc. For an entry of
// Every, Repeat or Schedule it moves the next firing, and returns true until the entry ends; while a firing is in
// progress, it moves the firing after that.
//
// Reschedule needs no error: a pending entry already counts in WithMaxPendingTimeouts, and the entries of a stopped
// wheel have ended. It is safe for concurrent use and does not block; of concurrent calls, the last one counts. A
// move to a later time is cheaper than Stop and AfterFunc, because the entry stays in its bucket until the old
// deadline.
func (t Timer) Reschedule(d time.Duration) bool {
	return t.shard != nil && t.shard.reschedule(t.index, t.gen, d)
}

// Pending reports whether the entry is pending: it has not fired and was not stopped. An entry of Every, Repeat
// or Schedule is pending until it ends.
func (t Timer) Pending() bool { return t.shard != nil && t.shard.pending(t.index, t.gen) }
