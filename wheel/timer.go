package wheel

import "time"

// Timer is the handle of one scheduled entry: a small comparable value, copied freely and safe for concurrent
// use. The zero Timer, and any Timer whose entry has fired, was stopped or was returned by the wheel's Stop,
// is expired. An expired handle stays harmless for ever: it does not reach entries scheduled later, even
// where they reuse the same memory (unless it is kept while the same memory is reused 2^32 times).
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

// Reset lets the entry fire once d has passed from now instead of at its former deadline, as soon as possible
// if d is zero or less. It returns true if the entry was still pending. Unlike time.Timer, a Timer that is
// expired cannot be revived: Reset then returns false and does nothing; schedule a new entry. Moving a
// deadline later is cheaper than Stop and AfterFunc, as the entry stays where it is until its old time comes.
// On an entry of Every or Schedule it moves the next firing; if one is in progress, that is the one after it.
// Reset does not block.
func (t Timer) Reset(d time.Duration) bool {
	return t.shard != nil && t.shard.reset(t.index, t.gen, d)
}

// Pending reports whether the entry is still to fire, which entries of Every and Schedule are until they end.
func (t Timer) Pending() bool { return t.shard != nil && t.shard.pending(t.index, t.gen) }
