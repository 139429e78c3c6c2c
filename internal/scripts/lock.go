package scripts

import "github.com/redis/go-redis/v9"

// The plain lock, on Redisson's wire form: a hash named like the lock whose one
// field is the holder. The id is the field's name and belongs to one acquisition,
// so a second execution of a call finds its own work done.
var (
	// LockAcquire takes the lock if it is free.
	//
	//	KEYS  name, fence if a fencing token is wanted
	//	ARGV  id, ttlMillis, and with a fence: fenceMillis, spare
	//	reply {1, ttlMillis, token} taken, or held by this id already; the TTL is set unless it is longer; the token comes with a fence only
	//	      {0, pttl}             held by another; pttl is in milliseconds, -1 without expiry
	//
	// A token is higher than all that went before: one more than the last, or the server's time in microseconds if that is
	// higher, so that it rises even if the fence has expired or was lost. The next spare tokens are the holder's too.
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

	// LockForce frees the lock, whoever holds it, and wakes waiters.
	//
	//	KEYS  name, channel
	//	ARGV  PUBLISH or SPUBLISH
	//	reply 1 freed, 0 was free
	LockForce = declare("lock_force")

	// LockRenew sets the TTL of each lock that its id holds, unless it is longer. Many locks can
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
