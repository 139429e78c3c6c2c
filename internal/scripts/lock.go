package scripts

// The scripts of plain locks use the key of Redisson: a hash with the name of the lock, whose only field is the id of
// the holder. An id belongs to one acquisition, so a second execution of a call finds the result of the first.
var (
	// LockAcquire takes the lock if it is free, and LockRelease releases it if the id holds it.
	LockAcquire = declare("lock_acquire", shares(share{
		script: LocksAcquire, keys: 1, args: 2, own: []int{0}, replies: 2,
	}))
	LockRelease = declare("lock_release", shares(share{
		script: LocksRelease, keys: 1, args: 2, own: []int{0}, replies: 1, single: true, first: true,
	}))

	LockLeave = declare("lock_leave") // takes a waiter out of the line of a lock

	// LockKeep is LockRelease for a lock that was taken with a minimum hold.
	LockKeep = declare("lock_keep")

	LocksAcquire = declare("locks_acquire") // LockAcquire for many locks
	LocksRelease = declare("locks_release") // LockRelease for many locks
	LockForce    = declare("lock_force")    // frees the lock of any holder, and notifies the holder's client
	LockRegain   = declare("lock_regain")   // LockAcquire for a missing part of a quorum's hold
	LockRenew    = declare("lock_renew")    // renews any number of plain locks, fair locks and writers
)

// LockFence returns the key of the lock's last fencing token.
func LockFence(name string) string { return PrefixName("redisson_lock_token", name) }

// LockForced returns the key that exists on a server on which the hold of a quorum was freed by force.
func LockForced(name, hold string) string { return SuffixName(name, hold+":forced") }

// LockChannel returns the channel on which releases of the lock are announced.
func LockChannel(name string) string { return PrefixName("redisson_lock__channel", name) }

// ClientChannel returns the channel on which a client is notified that holds of it were freed by force. The ids of its
// holds begin with client and a colon.
func ClientChannel(client string) string { return "cogwheel_client:" + client }
