package redislock

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// fairWait is what Redisson adds to the time at which a waiter counts as gone, for each place in the queue.
const fairWait = 5 * time.Minute

// fairAlive is how long a waiter of this Client counts as alive after it has asked.
func (c *Client) fairAlive() time.Duration { return 3 * c.poll }

// fair is Redisson's fair lock: the plain lock and a queue of its waiters. Each waiter has a channel of its
// own, on which it hears that it is first.
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
	force: func(r *request) scripts.Call {
		what := fairRelease(r)
		what.Args = append(what.Args, scripts.ClientChannel(""))
		return what
	},
	channel: func(name, id string) string { return scripts.FairLockChannel(name) + ":" + id },
	renew:   scripts.LockRenew,
}

func fairRelease(r *request) scripts.Call {
	args := []any{r.id, redisconn.Millis(fairWait), r.verb(), scripts.FairLockChannel(r.name())}
	return scripts.FairLockRelease.Call(scripts.FairLockKeys(r.name()), args...)
}

// FairMutex returns the fair lock of that name: waiters of all processes get it in the order of their
// arrival. TryLock fails while others wait; of a lock that is free, LockedError.TTL is then the time until
// the first waiter may be skipped. Otherwise it is like Mutex. It does not talk to Redis. Names and options
// are those of Mutex; WithHandoff has no effect.
//
// The keys in Redis are Redisson's: services in Java that use getFairLock(name) stand in the same queue. A
// waiter that has not asked for three polls, 15 seconds by default (see WithPoll), because its process died
// or Redis was out of its reach, is skipped. A waiter in Java is skipped after the time that Redisson gives
// it, 5 minutes and more. Each waiter has a subscription of its own and asks every few seconds, which costs
// more than Mutex, whose waiters share both.
//
// A Mutex of the same name is the same lock, and overtakes. As in Redisson, the names q and {q} are two locks
// with one queue: use one of them.
func (c *Client) FairMutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(fair, name, opts)
}
