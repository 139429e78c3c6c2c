package scripts

// The scripts of counting semaphores share Redisson's key and channel: the number of free permits under the
// semaphore's name, announced on redisson_sc:{name}. The number does not tell which process took what. A key
// per process holds the sequence number and the result of its last call, by which a script recognises a
// repeated call.
var (
	SemAcquire = declare("sem_acquire", shares(share{
		script: SemsAcquire, keys: 2, args: 8, own: []int{0, 1, 4, 7}, replies: 4,
	}))
	SemRelease = declare("sem_release", shares(share{
		script: SemsRelease, keys: 2, args: 9, own: []int{2, 4, 5, 6}, replies: 1, first: true,
	}))
	SemEdit = declare("sem_edit")

	SemsAcquire = declare("sems_acquire") // serves one request of each of many semaphores
	SemsRelease = declare("sems_release") // makes one release of each of many semaphores

	// SemDelete deletes semaphores of every kind.
	SemDelete = declare("sem_delete")

	// SemLeave takes a waiter out of the line of a CountingSemaphore or a Semaphore.
	SemLeave = declare("sem_leave")
)

// The scripts of leased permits share Redisson's keys: the number of free permits under the semaphore's
// name, and in {name}:timeout the ids of held permits, 16 bytes each, with the instants at which they expire.
// Clients choose the ids, by which a script recognises a repeated call.
var (
	PermitAcquire = declare("permit_acquire", shares(share{
		script: PermitsAcquire, keys: 4, args: 10, own: []int{1, 9}, replies: 5,
	}))
	PermitRelease = declare("permit_release", shares(share{
		script: PermitsRelease, keys: 2, args: 5, own: []int{1, 2, 4}, replies: 1, first: true,
	}))
	PermitRenew = declare("permit_renew")
	PermitEdit  = declare("permit_edit")
	PermitState = declare("permit_state")
	PermitList  = declare("permit_list")

	PermitsAcquire = declare("permits_acquire") // acquires one permit of each of many semaphores
	PermitsRelease = declare("permits_release") // releases one permit of each of many semaphores
)

// SemChannel returns the channel on which permits of the semaphore are announced.
func SemChannel(name string) string { return PrefixName("redisson_sc", name) }
