package scripts

// The counting semaphore, on Redisson's wire form: a number of free permits under the semaphore's name, announced on
// redisson_sc:{name}. The number does not say who took what, so that calls are told apart by a lane: a key of one process
// that holds the sequence number of its last call and what came of it. A second execution finds it and changes nothing.
var (
	// SemAcquire grants the longest prefix of requests that fits.
	//
	//	KEYS  name, lane, channel
	//	ARGV  seq, confirmed, laneMillis, PUBLISH or SPUBLISH, n1 .. nk
	//	reply {requests served, 1 or 0 whether the permits were ever set, free permits}
	//
	// What a call after confirmed and before seq took is given back: its sender never learned of it.
	SemAcquire = declare("sem_acquire")

	// SemRelease adds permits.
	//
	//	KEYS  name, lane, channel
	//	ARGV  laneMillis, PUBLISH or SPUBLISH, then per release seq, n, 1 or 0 only if the key exists, max or 0
	//	reply {1 added, 0 no key, -1 above max}, in order
	SemRelease = declare("sem_release")

	// SemEdit sets (where nothing is set), adds or drains.
	//
	//	KEYS  name, record, channel
	//	ARGV  set, add or drain, n, ttlMillis or 0, PUBLISH or SPUBLISH, recordMillis
	//	reply set: 1 or 0; add: the new value; drain: the old value
	SemEdit = declare("sem_edit")
)

// The leased semaphore, on Redisson's wire form: free permits under the semaphore's name, and in {name}:timeout the ids
// of the permits that are held, 16 bytes each, by the instant at which they expire. Each script first takes
// back what has expired. Ids are the client's, so that each script may execute twice.
var (
	// PermitAcquire grants the longest prefix of requests that fits.
	//
	//	KEYS  name, {name}:timeout, fence, channel
	//	ARGV  PUBLISH or SPUBLISH, fenceMillis, then per request ttlMillis, n, n ids
	//	reply {1 or 0 whether permits were ever set, free, held, milliseconds to the nearest expiry or -1,
	//	      then per request its fencing token or 0}
	PermitAcquire = declare("permit_acquire")

	// PermitRelease gives permits back.
	//
	//	KEYS  name, {name}:timeout, channel
	//	ARGV  PUBLISH or SPUBLISH, 1 all or none, ids
	//	reply {1 removed, 0 was not held}, in order
	PermitRelease = declare("permit_release")

	// PermitRenew sets the lease of permits that are held.
	//
	//	KEYS  {name}:timeout
	//	ARGV  ttlMillis, GT or XX, ids
	//	reply {1 renewed, 0 not held}, in order
	PermitRenew = declare("permit_renew")

	// PermitEdit changes the number of permits.
	//
	//	KEYS  name, {name}:timeout, record, channel
	//	ARGV  try (where nothing is set), set or add, n, PUBLISH or SPUBLISH, recordMillis
	//	reply 1 done, 0 not
	PermitEdit = declare("permit_edit")

	// PermitState tells the number of permits.
	//
	//	KEYS  name, {name}:timeout, channel
	//	ARGV  PUBLISH or SPUBLISH, id or nothing
	//	reply {1 or 0 whether permits were ever set, free, held, the id's lease in milliseconds, -1 for ever, -2 not held}
	PermitState = declare("permit_state")

	// FairStep takes requests, gives permits back and assigns what is free to those who came first.
	//
	//	KEYS  permits, leases, queue, alive, needs, fence
	//	ARGV  PUBLISH or SPUBLISH, channel prefix, waitMillis, owner (32 bytes), fenceMillis, number of ids that leave, these
	//	      ids, then per request ttlMillis, 1 or 0 whether it waits, n, n ids
	//	reply {{1 or 0 whether an id that left was held, ..}, 1 or 0 whether permits were ever set, free, held,
	//	      milliseconds to the nearest expiry or -1, then per request its fencing token or 0}
	//
	// A request is known by its first id. What is assigned to another owner is announced on channel:owner, and taken
	// back unless it is claimed by a call with the same id within waitMillis. Requests not heard of for that long are skipped.
	FairStep = declare("fair_step")
)

// SemChannel returns the channel on which permits of the semaphore are announced.
func SemChannel(name string) string { return PrefixName("redisson_sc", name) }
