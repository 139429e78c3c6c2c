package scripts

import "github.com/redis/go-redis/v9"

// The plain lock, on Redisson's wire form: a hash named like the lock whose one
// field is the holder. The id is the field's name and belongs to one acquisition,
// so a second execution of a call finds its own work done.
var (
	// LockAcquire takes the lock if it is free.
	//
	//	KEYS  name
	//	ARGV  id, ttlMillis
	//	reply {1, ttlMillis} taken, or held by this id already; the TTL is set
	//	      {0, pttl}      held by another; pttl is in milliseconds, -1 without expiry
	//
	// A key that is a read/write lock is refused (see [WrongKind]), and one
	// that is no hash fails with WRONGTYPE.
	LockAcquire = declare("lock_acquire")

	// LockRelease frees the lock if this id holds it, and wakes waiters.
	//
	//	KEYS  name, channel
	//	ARGV  id, PUBLISH or SPUBLISH
	//	reply 1 released, 0 this id does not hold it
	LockRelease = declare("lock_release")

	// LockRenew sets the TTL of each lock that its id holds. Many locks can
	// go in one call where all keys are on one server.
	//
	//	KEYS  name1 .. nameN
	//	ARGV  ttlMillis, id1 .. idN
	//	reply {1 or 0, ...} renewed or not held, in order
	LockRenew = declare("lock_renew")
)

// WrongKind reports whether a script refused a key because it holds an object of
// another kind, such as a plain lock taken under the name of a read/write lock.
func WrongKind(err error) bool { return redis.HasErrorPrefix(err, "WRONGKIND") }
