package scripts

// The plain lock, on Redisson's wire form: a hash named like the lock whose one
// field is the holder. The id is the field's name and belongs to one acquisition,
// so a second execution of a call finds its own work done.
var (
	// LockAcquire takes the lock if it is free, and LockRelease releases it if the id holds it.
	LockAcquire = declare("lock_acquire", shares(share{script: LocksAcquire, keys: 1, args: 2, replies: 2}))
	LockRelease = declare("lock_release", shares(share{
		script: LocksRelease, keys: 1, args: 3, replies: 1, single: true, first: true,
	}))

	// LockKeep is LockRelease for a lock that was taken with a minimum hold.
	LockKeep = declare("lock_keep")

	LocksAcquire = declare("locks_acquire") // takes those of many locks that are free
	LocksRelease = declare("locks_release") // releases those of many locks that their ids hold
	LockForce    = declare("lock_force")    // frees it, whichever id holds it, and notifies that client
	LockRenew    = declare("lock_renew")    // renews any number of plain and fair locks and writers
)

// LockFence returns the key of the lock's last fencing token.
func LockFence(name string) string { return PrefixName("redisson_lock_token", name) }

// LockChannel returns the channel on which releases of the lock are announced.
func LockChannel(name string) string { return PrefixName("redisson_lock__channel", name) }

// ClientChannel returns the channel on which a client hears that holds of its own were freed by force. The ids
// of its holds begin with client and a colon.
func ClientChannel(client string) string { return "cogwheel_client:" + client }
