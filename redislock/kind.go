package redislock

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// kind is all that distinguishes one kind of lock from another: its scripts, their keys and arguments, and
// the channels of its waiters. Everything else (attempts and retries, waiting, the watchdog, hand-overs,
// releases in the background, the Lock itself) is written once for all kinds.
//
// To add a kind:
//
//  1. Write its scripts in internal/scripts, each idempotent on the id, with the replies that the fields describe.
//     internal/scripts/doc.go has the rules.
//  2. Declare a package-level *kind. Its functions only build calls; they must not block or keep the request. If an
//     Owner should know the lock as one of another kind, owned in owner.go says so.
//  3. Give the Client a constructor that returns newMutex(thatKind, name, opts), or a type made of several such
//     Mutexes, as a read/write lock is made of one for readers and one for the writer.
//  4. If it renews by a script of its own, set renew and renewKeys; leases are batched per kind without more ado.
type kind struct {
	// name is the type of its locks, for messages.
	name string
	// is what events and holds call the kind.
	is Kind

	// mark is appended to the id of each request, such as Redisson's ":write".
	mark string

	// acquire asks for the lock. The script replies {1, ttlMillis} or, if the lock is fenced, {1, ttlMillis,
	// token, number of tokens reserved after it}, when it is now held under the id, else {0, pttl}: the
	// milliseconds until what stands in the way may end by itself, -1 if it will not. An error reply that
	// redisconn.WrongKind recognises becomes ErrWrongKind.
	acquire func(*request) scripts.Call

	// release frees the lock and wakes the waiters. The script replies 1 if it was held under the id, else 0.
	release func(*request) scripts.Call

	// leave is set for kinds whose server remembers waiters. It removes the place of a request that is given
	// up, and frees the lock if the request holds it. Such a request keeps one id for as long as it waits;
	// requests of other kinds get a new id for each attempt.
	leave func(*request) scripts.Call

	// channel names the channel on which a waiter hears that it should ask again. Only the channels of kinds
	// with leave may depend on the id: their waiters have a queue each.
	channel func(name, id string) string

	// exclusive says that one Lock at a time holds the lock, and that the process decides which of its
	// waiters comes next. Then waiters do not ask Redis while a Lock of their process holds it, and the lock
	// is handed over to them directly.
	exclusive bool

	// force frees the lock, whatever hold has it, notifies the clients of its holds, and wakes the waiters. The
	// script replies {1, ids} if the lock was held, with the ids of holds whose clients have yet to be notified,
	// else {0}.
	force func(*request) scripts.Call

	// within is a kind whose hold includes this one: a writer may read. An Owner that holds that kind gets
	// this one too, and an Owner that holds this kind is refused that one.
	within *kind

	// renew sets the TTL of many locks of this kind where it is shorter. KEYS are the renewKeys of each, ARGV
	// id1, ttlMillis1, id2 ..; it replies {1 renewed or 0 not held, ..} in order.
	renew *scripts.Script

	// renewKeys are the keys of one lock in renew, as many for each. Nil stands for the name alone.
	renewKeys func(name, id string) []string
}

// request is what Redis knows an acquisition by. It does not change once it was sent.
type request struct {
	mutex *Mutex
	id    string // the holder's field: unique for ever

	// Of a fenced hold: its token, and the last one that Redis has reserved for it.
	token, lastReserved int64

	handoffsWanted int32 // how many tokens may be needed for hand-overs
	waits          bool  // after a refusal; false for TryLock
}

func (r *request) client() *Client    { return r.mutex.client }
func (r *request) kind() *kind        { return r.mutex.kind }
func (r *request) name() string       { return r.mutex.name }
func (r *request) ttl() time.Duration { return r.mutex.config.lease }
func (r *request) fenced() bool       { return r.mutex.config.fenced }

// wantsToken reports whether Redis grants the request with a token. Readers, whose kind lies within another, have
// none.
func (r *request) wantsToken() bool { return r.fenced() && r.kind().within == nil }

// verb is the command that publishes a release.
func (r *request) verb() any { return r.mutex.client.channels.Verb() }

// keysToRenew is renewKeys with its default.
func (k *kind) keysToRenew(name, id string) []string { return k.appendKeysToRenew(nil, name, id) }

func (k *kind) appendKeysToRenew(keys []string, name, id string) []string {
	if k.renewKeys == nil {
		return append(keys, name)
	}
	return append(keys, k.renewKeys(name, id)...)
}

// fenceMillis is how long Redis keeps the last token: a day, which matters only if its clock is set back, or 0, for
// ever, where Java uses the counter too.
func (r *request) fenceMillis() int {
	if r.mutex.config.sharedFence {
		return 0
	}
	return 86_400_000
}

// plain is Redisson's RLock: a hash named like the lock whose one field is the holder.
var plain = &kind{
	name: "Mutex",
	is:   KindMutex,
	acquire: func(r *request) scripts.Call {
		if r.fenced() {
			keys := []string{r.name(), scripts.LockFence(r.name())}
			args := []any{r.id, r.mutex.config.millis, r.fenceMillis(), r.handoffsWanted}
			return scripts.LockAcquire.Call(keys, args...)
		}
		return scripts.LockAcquire.Call([]string{r.name()}, r.id, r.mutex.config.millis)
	},
	release: func(r *request) scripts.Call {
		return r.returningTokens(scripts.LockRelease, scripts.LockChannel(r.name()))
	},
	force: func(r *request) scripts.Call {
		channel := scripts.LockChannel(r.name())
		return scripts.LockForce.Call([]string{r.name()}, r.verb(), channel, scripts.ClientChannel(""))
	},
	channel:   func(name, _ string) string { return scripts.LockChannel(name) },
	exclusive: true,
	renew:     scripts.LockRenew,
}

// returningTokens is a release that gives back the tokens that were reserved and not used. With the fence as
// a second key only where there are any, all other releases have one key, and so succeed while their slot
// migrates.
func (r *request) returningTokens(release *scripts.Script, channel string) scripts.Call {
	what := release.Call([]string{r.name()}, r.id, r.verb(), channel)
	if r.token < r.lastReserved {
		what.Keys = append(what.Keys, scripts.LockFence(r.name()))
		what.Args = append(what.Args, r.lastReserved, r.token)
	}
	return what
}
