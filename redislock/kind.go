package redislock

import (
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// kind describes one kind of lock: its scripts, their keys and arguments, and the channels of its waiters.
// Everything else (attempts and retries, waiting, the watchdog, handoffs, releases in the background, the
// Lock itself) is written once for all kinds, with the exceptions in step 5.
//
// To add a kind:
//
//  1. Write its scripts in internal/scripts, each idempotent on the id, with the replies that the fields describe.
//     internal/scripts/doc.go has the rules.
//  2. Declare a package-level *kind. Its functions only build calls; they must not block or keep the request. If an
//     Owner must treat the lock as one of another kind, change owned in owner.go.
//  3. Give the Client a constructor that returns newMutex(thatKind, name, opts), or a type made of several such
//     Mutexes, as a read/write lock is made of one for readers and one for the writer.
//  4. Set renew: scripts.LockRenew if the id is a field of the hash under the name, else a script for the kind, with
//     renewKeys. Leases are batched per kind without further code.
//  5. Enter its Kind in hooks.go, and its constructor in allNeeds of check.go. A kind with a queue in Redis also
//     changes needs of check.go.
//  6. Enter it in allKinds of kinds_test.go, in find and mutexOf of cmd/cogwheel, in cogwheeltest/holds.go, and its
//     keys in docs/keys.md.
type kind struct {
	// name is the type of its locks in messages.
	name string
	// is is the Kind in events and holds.
	is Kind

	// mark is the suffix of the id of each request, such as Redisson's ":write".
	mark string

	// acquire asks for the lock. If the id holds the lock afterwards, the script replies {1, ttlMillis}, or if
	// the lock is fenced {1, ttlMillis, token, number of tokens reserved after it}. Otherwise it replies {0,
	// pttl}: the milliseconds until the obstacle may end without a release, or -1 if it will not. If no message will
	// tell the end of the obstacle, it replies {0, pttl, place, 2}, with -1 as the place of a request without a
	// waiter. An error reply that redisconn.WrongKind recognises becomes ErrWrongKind.
	acquire func(*request) scripts.Call

	// release frees the lock and wakes the waiters. The script replies 1 if the id held the lock, else 0.
	release func(*claim) scripts.Call

	// leave is set for kinds with a queue of waiters in Redis. It removes the place of a request that is given
	// up, and frees the lock if the request holds it. Such a request keeps one id for as long as it waits;
	// requests of other kinds get a new id for each attempt.
	leave func(*claim) scripts.Call

	// channel returns the channel on which a waiter is woken. Only a kind with leave may use the id: each of
	// its waiters has a queue.
	channel func(name, id string) string

	// lines means that the waiters of all processes have a line in Redis; see package line. A request with a waiter
	// asks from its place: acquire uses inLine, and the script replies {0, pttl, place, unheard}.
	lines bool

	// leaveLine takes a waiter out of the line of a name; channel is the channel of the name. It is nil for readers:
	// their one entry serves the readers of all processes.
	leaveLine func(name, waiter string, verb any, channel string) scripts.Call

	// exclusive means that one Lock at a time holds the lock, and that the process decides which of its waiters
	// is next. Then waiters do not ask Redis while a Lock of their process holds it, and the lock is handed
	// over to them directly.
	exclusive bool

	// force frees the lock, whoever holds it, notifies the clients of its holds, and wakes the waiters. The
	// script replies {1, ids} if the lock was held, with the ids of holds whose clients must still be notified,
	// else {0}. It replies {2, id} if the holder is a part of a Quorum's hold that must be marked first, and then
	// gets the id as a further argument.
	force func(*claim) scripts.Call

	// within is a kind whose hold includes this one: a writer may read. An Owner that holds that kind gets this
	// kind too. An Owner that holds this kind is refused that kind.
	within *kind

	// renew raises the TTL of many locks of this kind where it is shorter. KEYS are the renewKeys of each lock,
	// ARGV is id1, ttlMillis1, id2 .. The reply is {1 renewed or 0 not held, ..} in order.
	renew *scripts.Script

	// view reads the holders of a lock for State.
	view view

	// renewKeys returns the keys of one lock in renew, as many for each lock. Nil stands for the name alone.
	renewKeys func(name, id string) []string
}

// claim identifies an acquisition in Redis: in the request for it, and then in its hold, for which the token and
// keepUntil are set.
type claim struct {
	mutex *Mutex
	id    string // the field of the holder in Redis: unique for ever

	// For a fenced hold: its token, and the last token that Redis has reserved for it.
	token, lastReserved int64

	// keepUntil is when the minimum of a hold has passed for sure, by the clock of the Client; 0 if its release frees
	// the lock at once. A release before asks Redis, whose clock decides.
	keepUntil time.Duration
}

// request asks Redis for a lock. It does not change once it was sent.
type request struct {
	claim
	waiter string        // as which it asks from its place in the line, or ""
	waited time.Duration // so far

	handoffsWanted int32 // the number of tokens that handoffs may need
	regains        bool  // it asks for a missing part of a Quorum's hold
	waits          bool  // the call waits if it is refused; false for TryLock
}

func (c *claim) client() *Client    { return c.mutex.client() }
func (c *claim) kind() *kind        { return c.mutex.kind }
func (c *claim) name() string       { return c.mutex.name }
func (c *claim) ttl() time.Duration { return c.mutex.config.lease }
func (c *claim) fenced() bool       { return c.mutex.config.fenced }

// wantsToken reports whether Redis grants the request with a token. A reader, whose kind lies within another,
// gets none.
func (c *claim) wantsToken() bool { return c.fenced() && c.kind().within == nil }

// forcedKey is the key that marks, on one server, the hold of a part as freed by force.
func (c *claim) forcedKey() string {
	hold, _, _ := strings.Cut(c.id, serverMark)
	return scripts.LockForced(c.name(), hold)
}

// verb is the command that publishes a release.
func (c *claim) verb() any { return c.mutex.client().redis.Channels.Verb() }

// queuesInRedis reports whether the waiters have a queue in Redis.
func (k *kind) queuesInRedis() bool { return k.leave != nil }

// keysToRenew returns the renewKeys of a lock, or their default.
func (k *kind) keysToRenew(name, id string) []string { return k.appendKeysToRenew(nil, name, id) }

func (k *kind) appendKeysToRenew(keys []string, name, id string) []string {
	if k.renewKeys == nil {
		return append(keys, name)
	}
	return append(keys, k.renewKeys(name, id)...)
}

// fenceMillis is how long Redis keeps the last token: a day, which matters only if the server's clock is set
// back, or for ever (0) if Java uses the counter too.
func (c *claim) fenceMillis() int {
	if c.mutex.config.sharedFence {
		return 0
	}
	return 86_400_000
}

// plain is Redisson's RLock: a hash with the name of the lock, whose one field is the holder.
var plain = &kind{
	name: "Mutex",
	is:   KindMutex,
	acquire: func(r *request) scripts.Call {
		keys, args, least := []string{r.name()}, []any{r.id, r.mutex.config.millis}, r.mutex.config.minHold
		if r.regains {
			return scripts.LockRegain.Call(append(keys, r.forcedKey()), args...)
		}
		if r.fenced() {
			keys = append(keys, scripts.LockFence(r.name()))
		}
		if r.fenced() || least > 0 {
			args = append(args, r.fenceMillis(), r.handoffsWanted)
		}
		if least > 0 {
			args = append(args, redisconn.Millis(least))
		}
		return scripts.LockAcquire.Call(keys, r.inLine(args, 5)...)
	},
	release: func(c *claim) scripts.Call {
		if c.keepUntil > 0 && c.client().clock.Now() < c.keepUntil {
			return scripts.LockKeep.Call([]string{c.name()}, c.id, c.verb(), scripts.LockChannel(c.name()))
		}
		return c.returningTokens(scripts.LockRelease, c.id, c.verb())
	},
	force: func(c *claim) scripts.Call {
		channel := scripts.LockChannel(c.name())
		return scripts.LockForce.Call([]string{c.name()}, c.verb(), channel, scripts.ClientChannel(""))
	},
	channel:   func(name, _ string) string { return scripts.LockChannel(name) },
	exclusive: true,
	renew:     scripts.LockRenew,
	lines:     true,
	leaveLine: leaveLineOf(0),
	view:      hashView,
}

// leaveLineOf returns leaveLine for a lock that is a hash: 1 of a read/write lock, 0 of any other.
func leaveLineOf(readWrite int) func(name, waiter string, verb any, channel string) scripts.Call {
	return func(name, waiter string, verb any, channel string) scripts.Call {
		return scripts.LockLeave.Call([]string{name}, waiter, verb, channel, readWrite)
	}
}

// inLine appends the arguments with which a waiter asks from its place in the line behind the first n arguments, of
// which those that are missing are empty.
func (r *request) inLine(args []any, n int) []any {
	if r.waiter == "" {
		return args
	}
	for len(args) < n {
		args = append(args, "")
	}
	alive, channel := redisconn.Millis(r.client().fairAlive()), r.kind().channel(r.name(), r.id)
	return append(args, r.waiter, r.waited.Milliseconds(), alive, r.verb(), channel)
}

// returningTokens returns a release that gives back reserved tokens that were not used. Only such a release has
// the fence as a second key; all others have one key, so they succeed while their slot migrates.
func (c *claim) returningTokens(release *scripts.Script, args ...any) scripts.Call {
	what := release.Call([]string{c.name()}, args...)
	if c.token < c.lastReserved {
		what.Keys = append(what.Keys, scripts.LockFence(c.name()))
		what.Args = append(what.Args, c.lastReserved, c.token)
	}
	return what
}
