package scripts

// The fair lock, on Redisson's wire form: the plain lock's hash, a list of those who wait in order of arrival, and by when each
// of them counts as gone. That time is Redisson's: minutes, and longer with every place in the queue. A waiter of this
// library says every few seconds that it is alive, in a key that Redisson does not know, and is skipped soon after it stops.
// Times are the server's; whoever waits is told that it is first on a channel of its own, KEYS[5]:id.
var (
	// FairLockAcquire takes the lock if it is free and id is first, or stands or stays in line.
	//
	//	KEYS  FairLockKeys(name), fence if a fencing token is wanted
	//	ARGV  id, ttlMillis, 1 or 0 whether it waits, waitMillis of Redisson, aliveMillis, PUBLISH or SPUBLISH, and with a
	//	      fence: fenceMillis
	//	reply {1, ttlMillis, token} taken, or held by this id already; about tokens see LockAcquire
	//	      {0, ms}               not; ms is the holder's TTL, or if there is none until a look may be worth while
	FairLockAcquire = declare("fair_lock_acquire")

	// FairLockRelease frees the lock if this id holds it, or by force, takes the id out of the line, and wakes who is first then.
	//
	//	KEYS  FairLockKeys(name)
	//	ARGV  id, waitMillis, PUBLISH or SPUBLISH, and to free the lock whoever holds it: force
	//	reply 1 released, 0 this id does not hold it
	FairLockRelease = declare("fair_lock_release")
)

// FairLockKeys returns the keys of the scripts above.
func FairLockKeys(name string) []string {
	return []string{
		name, PrefixName("redisson_lock_queue", name), PrefixName("redisson_lock_timeout", name),
		PrefixName("cogwheel_lock_alive", name), LockChannel(name),
	}
}
