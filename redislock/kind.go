package redislock

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// kind is all that tells one sort of lock from another: its scripts, their keys and arguments, and where its waiters
// listen. Everything else (asking and asking again, waiting, the watchdog, hand-off, retried releases, the Lock itself)
// is written once and knows locks by their kind alone.
//
// To add a kind:
//
//  1. Write its scripts in internal/scripts, each idempotent on the id, with the replies described below.
//  2. Declare a package-level *kind. Its functions only build calls; they must not block or keep the request.
//     Enter it in kinds.
//  3. Give the Client a constructor that returns newMutex(thatKind, name, opts), or a type made of several such Mutexes,
//     as a read/write lock is made of one for readers and one for the writer.
//  4. If it renews by a script of its own, set renew and renewKeys; leases are batched per kind without more ado.
type kind struct {
	// label tells locks of different kinds under one name apart within the process. It must be unique, and one word.
	label string

	// mark is appended to the id of each request, such as Redisson's ":write".
	mark string

	// acquire asks for the lock. The script replies {1, ttlMillis} or, if the lock is fenced, {1, ttlMillis, token} and perhaps the
	// number of tokens reserved after it, when it is now held under the id, else {0, pttl}: the milliseconds until what stands in
	// the way may end by itself, -1 if it will not. An error reply that scripts.WrongKind recognises becomes ErrWrongKind.
	acquire func(*request) call

	// release frees the lock and wakes those who wait. The script replies 1 if it was held under the id, else 0.
	release func(*request) call

	// leave is set for kinds whose server remembers who waits. It takes a request that is given up out of the books, and
	// frees the lock if it holds it. Such a request keeps one id for as long as it waits; of other kinds, each attempt
	// has an id of its own.
	leave func(*request) call

	// channel is where a waiter hears that a look may be worth while. All who wait for a lock on the same terms stand in one queue of
	// the process, of which only the head asks Redis; those of a kind with leave each in their own, so that only their channels
	// may depend on the id.
	channel func(name, id string) string

	// exclusive says that one Lock at a time holds it and that who of a process comes next is the process's business. Then its
	// waiters do not ask Redis while a Lock of the same process holds it, and are handed the lock directly.
	exclusive bool

	// force frees the lock whoever holds it and wakes those who wait. The script replies 1 if it was held, else 0.
	force func(*request) call

	// within is a kind whose holder has this one too: the writer may read. An Owner who holds that one gets the same Lock, and one
	// who holds this one is refused that.
	within *kind

	// renew sets the TTL of many locks of this kind where it is shorter. KEYS are the renewKeys of each, ARGV
	// id1, ttlMillis1, id2 ..; it replies {1 renewed or 0 not held, ..} in order.
	renew *scripts.Script

	// renewKeys are the keys of one lock in renew, as many for each. Nil stands for the name alone.
	renewKeys func(name, id string) []string
}

// request is one acquisition of a lock, wished for or achieved. It does not change once it was sent.
type request struct {
	mutex *Mutex
	id    string // the holder's field: unique for ever
	spare int32  // how many tokens more may be needed to hand the lock on
	waits bool   // whoever is refused goes on waiting; false for TryLock

	// Of a fenced hold: the last token that Redis has reserved for it, and the last one used.
	reserved, used int64
}

func (r *request) client() *Client    { return r.mutex.client }
func (r *request) kind() *kind        { return r.mutex.kind }
func (r *request) name() string       { return r.mutex.name }
func (r *request) ttl() time.Duration { return r.mutex.config.lease }
func (r *request) fenced() bool       { return r.mutex.config.fenced }

// verb is the command that wakes waiters.
func (r *request) verb() string { return r.mutex.client.channels.Verb() }

// call is one execution of a script.
type call struct {
	script *scripts.Script
	keys   []string
	args   []any
}

// keysToRenew is renewKeys with its default.
func (k *kind) keysToRenew(name, id string) []string {
	if k.renewKeys == nil {
		return []string{name}
	}
	return k.renewKeys(name, id)
}

// fenceMillis is how long Redis remembers the last token, which matters only if its clock is set back.
const fenceMillis = 86_400_000

// plain is Redisson's RLock: a hash named like the lock whose one field is the holder.
var plain = &kind{
	label: "plain",
	acquire: func(r *request) call {
		if r.fenced() {
			keys := []string{r.name(), scripts.LockFence(r.name())}
			return call{scripts.LockAcquire, keys, []any{r.id, calls.Millis(r.ttl()), fenceMillis, r.spare}}
		}
		return call{scripts.LockAcquire, []string{r.name()}, []any{r.id, calls.Millis(r.ttl())}}
	},
	release: func(r *request) call { return r.returningTokens(scripts.LockRelease, scripts.LockChannel(r.name())) },
	force: func(r *request) call {
		return call{scripts.LockForce, []string{r.name()}, []any{r.verb(), scripts.LockChannel(r.name())}}
	},
	channel:   func(name, _ string) string { return scripts.LockChannel(name) },
	exclusive: true,
	renew:     scripts.LockRenew,
}

// returningTokens is a release that gives back the tokens that were reserved and not used. With the fence as a second key only
// where there are any, all other releases have one key, and so succeed while their slot migrates.
func (r *request) returningTokens(release *scripts.Script, channel string) call {
	what := call{release, []string{r.name()}, []any{r.id, r.verb(), channel}}
	if r.used < r.reserved {
		what.keys = append(what.keys, scripts.LockFence(r.name()))
		what.args = append(what.args, r.reserved, r.used)
	}
	return what
}

// kinds are those with waiters, by their labels.
var kinds = map[string]*kind{plain.label: plain, fair.label: fair, reading.label: reading, writing.label: writing}
