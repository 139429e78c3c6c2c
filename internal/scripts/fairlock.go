package scripts

// The fair lock, on Redisson's wire form: the plain lock's hash, a list of the ids that wait in order of
// arrival, and by when each of them counts as gone. That instant is Redisson's: minutes away, and further
// with every place in the line. A waiter of this library says every few seconds that it is alive, in a key
// that Redisson does not know, and is passed over soon after it stops. All times are the server's. The first
// in line is told that it is on a channel of its own, FairLockChannel(name):id.
var (
	// FairLockAcquire takes the lock if it is free and the id comes first, or keeps its place.
	FairLockAcquire = declare("fair_lock_acquire")
	FairLockRelease = declare("fair_lock_release") // frees the lock, by force if wanted, or gives up the place
)

// FairLockKeys returns the keys of the scripts above; that of a fence follows them.
func FairLockKeys(name string) []string {
	return []string{
		name, PrefixName("redisson_lock_queue", name), PrefixName("redisson_lock_timeout", name),
		PrefixName("cogwheel_lock_alive", name),
	}
}

// FairLockChannel returns what the channels of those that wait begin with.
func FairLockChannel(name string) string { return LockChannel(name) }
