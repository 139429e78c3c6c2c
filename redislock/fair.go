package redislock

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// fairWait is the time that Redisson adds to the timeout of a waiter for each place in the queue.
const fairWait = 5 * time.Minute

// fairAlive is how long a waiter of this Client keeps its place after a query. It must be well above the poll
// interval, or waiters that are alive would be skipped.
func (c *Client) fairAlive() time.Duration { return 3 * c.poll }

// fair is Redisson's fair lock: the plain lock and a queue of its waiters. Each waiter listens on a channel on
// which it learns that it is first.
var fair = &kind{
	name: "FairMutex",
	is:   KindFair,
	acquire: func(r *request) scripts.Call {
		keys, waits := scripts.FairLockKeys(r.name()), 0
		if r.waits {
			waits = 1
		}
		args := []any{
			r.id, r.mutex.config.millis, waits, redisconn.Millis(fairWait),
			redisconn.Millis(r.client().fairAlive()), r.verb(), scripts.FairLockChannel(r.name()),
		}
		if r.fenced() {
			keys, args = append(keys, scripts.LockFence(r.name())), append(args, r.fenceMillis())
		}
		return scripts.FairLockAcquire.Call(keys, args...)
	},
	release: fairRelease,
	leave:   fairRelease,
	force: func(c *claim) scripts.Call {
		what := fairRelease(c)
		what.Args = append(what.Args, scripts.ClientChannel(""))
		return what
	},
	channel: func(name, id string) string { return scripts.FairLockChannel(name) + ":" + id },
	renew:   scripts.LockRenew,
	view:    fairView,
}

func fairRelease(c *claim) scripts.Call {
	args := []any{c.id, redisconn.Millis(fairWait), c.verb(), scripts.FairLockChannel(c.name())}
	return scripts.FairLockRelease.Call(scripts.FairLockKeys(c.name()), args...)
}

// FairMutex returns the fair lock with the given name: waiters of all processes get it in the order in which
// they reach Redis. TryLock fails while others wait; if the lock is free, LockedError.TTL is then the time
// until the first waiter may be skipped. FairMutex does not talk to Redis. The rules for names and options are
// those of Mutex; WithHandoff has no effect, and WithMinHold is refused. Otherwise the lock is like a Mutex.
//
// The keys in Redis are Redisson's: services in Java that use getFairLock(name) wait in the same queue. A
// waiter is skipped if it has not asked for three of its poll intervals, 15 seconds by default (see WithPoll),
// because its process died or cannot reach Redis. A waiter in Java is skipped after the time that Redisson
// allows, 5 minutes and more. Each waiter has a subscription and asks every few seconds. That costs more than a
// Mutex, whose waiters share both.
//
// A Mutex of the same name is the same lock, and its callers overtake the queue. As in Redisson, the names q
// and {q} are two locks with one queue: use only one of them.
func (c *Client) FairMutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(fair, name, opts)
}
