package scripts

// The counting semaphore, on Redisson's wire form: a number of free permits under the semaphore's name, announced on
// redisson_sc:{name}. The number does not say who took what, so calls are told apart by a key of one process that holds the
// sequence number of its last call and what came of it. A second execution finds it and changes nothing.
var (
	SemAcquire = declare("sem_acquire") // grants the longest prefix of requests that fits
	SemRelease = declare("sem_release") // adds permits
	SemEdit    = declare("sem_edit")    // sets, adds or drains
)

// The leased semaphore, on Redisson's wire form: free permits under the semaphore's name, and in {name}:timeout the ids
// of the permits that are held, 16 bytes each, by the instant at which they expire. Each script first takes
// back what has expired. Ids are the client's, so that each script may execute twice.
var (
	PermitAcquire = declare("permit_acquire") // grants the longest prefix of requests that fits
	PermitRelease = declare("permit_release") // gives permits back
	PermitRenew   = declare("permit_renew")   // renews the leases of any number of grants
	PermitEdit    = declare("permit_edit")    // changes the number of permits
	PermitState   = declare("permit_state")   // tells the number of permits and the lease of one
	FairStep      = declare("fair_step")      // serves a fair semaphore: what leaves, what waits, what is free
)

// SemChannel returns the channel on which permits of the semaphore are announced.
func SemChannel(name string) string { return PrefixName("redisson_sc", name) }
