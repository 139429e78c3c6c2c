package scripts

import "strings"

// The read/write lock, on Redisson's wire form: a hash named like the lock with a field mode, read or write,
// and one field per holder, whose name ends in :write for the writer. The hash lives as long as the longest
// lease of a reader; the lease of each reader is the life of a key of its own, see [ReadTimeout]. A key
// without mode is another kind of lock and is refused with WRONGKIND. A writer is renewed by LockRenew.
var (
	ReadAcquire  = declare("rw_read_acquire")  // takes the lock for a reader if no writer has it
	ReadRenew    = declare("rw_read_renew")    // renews any number of readers
	ReadRelease  = declare("rw_read_release")  // ends a reader's hold
	WriteAcquire = declare("rw_write_acquire") // takes the lock for a writer if it is free
	WriteRelease = declare("rw_write_release") // ends a writer's hold
	Downgrade    = declare("rw_downgrade")     // makes the writer a reader
	RWForce      = declare("rw_force")         // frees the lock of all its readers or of its writer, and notifies them
)

// RWChannel returns the channel on which releases of the read/write lock are announced.
func RWChannel(name string) string { return PrefixName("redisson_rwlock", name) }

// ReadTimeouts returns what the timeouts of all readers of a lock begin with.
func ReadTimeouts(name string) string { return strings.TrimSuffix(SuffixName(name, ""), ":") }

// ReadTimeout returns the key that lives as long as the lease of one reader.
func ReadTimeout(name, id string) string { return SuffixName(name, id) + ":rwlock_timeout:1" }
