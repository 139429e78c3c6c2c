package scripts

import "strings"

// The read/write lock, on Redisson's wire form: a hash named like the lock with a field mode, read or write, and one field per
// holder, whose name ends in :write for the writer. The hash lives as long as the longest lease of a reader; how long that of
// each reader is tells a key of its own, see [ReadTimeout]. A key without mode is another kind of lock and is
// refused (see [WrongKind]).
var (
	// ReadAcquire takes the lock for a reader if no writer has it.
	//
	//	KEYS  name, ReadTimeout(name, id)
	//	ARGV  id, ttlMillis
	//	reply {1, ttlMillis} taken, or held by this id already; {0, pttl} held by a writer
	ReadAcquire = declare("rw_read_acquire")

	// ReadRenew sets the lease of each reader that its id holds, where it is shorter.
	//
	//	KEYS  name1, ReadTimeout(name1, id1), name2 ..
	//	ARGV  ttlMillis, id1 .. idN
	//	reply {1 or 0, ...} renewed or not held, in order
	ReadRenew = declare("rw_read_renew")

	// ReadRelease ends a reader's hold; the last one wakes waiters. It shortens the hash's life to the longest lease that
	// remains, and takes out readers whose lease is over.
	//
	//	KEYS  name, RWChannel(name), ReadTimeout(name, id), RWPrefix(name)
	//	ARGV  id, PUBLISH or SPUBLISH
	//	reply 1 released, 0 this id does not hold it
	ReadRelease = declare("rw_read_release")

	// WriteAcquire takes the lock for a writer if nobody has it. It is renewed by LockRenew.
	//
	//	KEYS  name, fence if a fencing token is wanted
	//	ARGV  id, ttlMillis, and with a fence: fenceMillis, spare
	//	reply {1, ttlMillis, token} taken, or held by this id already; {0, pttl} held by others
	//
	// About tokens see LockAcquire.
	WriteAcquire = declare("rw_write_acquire")

	// WriteRelease ends a writer's hold and wakes all who wait.
	//
	//	KEYS  name, RWChannel(name)
	//	ARGV  id, PUBLISH or SPUBLISH
	//	reply 1 released, 0 this id does not hold it
	WriteRelease = declare("rw_write_release")

	// Downgrade makes the writer a reader, with no instant between the two, and wakes waiting readers.
	//
	//	KEYS  name, RWChannel(name), ReadTimeout(name, reader's id)
	//	ARGV  writer's id, reader's id, ttlMillis, PUBLISH or SPUBLISH
	//	reply {1, ttlMillis} the reader holds it; {0, pttl} neither of them does
	Downgrade = declare("rw_downgrade")

	// RWForce frees the lock of all its readers or of its writer, and wakes all who wait.
	//
	//	KEYS  name, RWChannel(name)
	//	ARGV  read or write, PUBLISH or SPUBLISH
	//	reply 1 freed, 0 it was not held that way
	RWForce = declare("rw_force")
)

// RWChannel returns the channel on which releases of the read/write lock are announced.
func RWChannel(name string) string { return PrefixName("redisson_rwlock", name) }

// RWPrefix returns what the timeouts of all readers of a lock begin with. It is in their slot.
func RWPrefix(name string) string { return strings.TrimSuffix(SuffixName(name, ""), ":") }

// ReadTimeout returns the key that lives as long as the lease of one reader.
func ReadTimeout(name, id string) string { return SuffixName(name, id) + ":rwlock_timeout:1" }
