package scripts

// The scripts of fair locks use the keys of Redisson: the hash of the plain lock, a list of the ids of waiters in order
// of arrival, and for each id the timeout after which it counts as gone. Redisson sets timeouts of minutes, longer for
// each place in the queue. So a waiter of this library also reports every few seconds that it is alive, in a key that
// Redisson does not know, and is skipped soon after it stops. All times are the server's. The first waiter is notified
// on a separate channel, FairLockChannel(name):id.
var (
	FairLockAcquire = declare("fair_lock_acquire") // takes the lock if it is free and the id is first, or queues the id
	FairLockRelease = declare("fair_lock_release") // frees the lock, also by force, or removes the id from the queue
)

// FairLockKeys returns the keys of the scripts above. The key of a fence follows them.
func FairLockKeys(name string) []string {
	return []string{
		name, PrefixName("redisson_lock_queue", name), PrefixName("redisson_lock_timeout", name),
		PrefixName("cogwheel_lock_alive", name),
	}
}

// FairLockChannel returns the prefix of the channels of waiters.
func FairLockChannel(name string) string { return LockChannel(name) }
