// Package line is a Client's side of the lines in Redis, in which the waiters of all processes for one name are woken
// one after the other. include/line.lua of package scripts has the side of Redis.
//
// A place is that of one queue of a process: its head asks, and enters the line if it is refused. A release wakes the
// first place, on a channel that only its process hears, and tells the second to ask soon unless it is woken. A waiter
// enters only after that channel was subscribed: a release forgets places whose channels nobody hears.
//
// Without the right to the line or to the channel, and, unless they are Uncounted, where the number of receivers is not
// known, the waiters listen on the channel of the name instead, as Redisson's do, and all ask after each release.
package line

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// A queue that is refused asks for spare requests more than were granted last, and for fewestAsked at least: then one
// script takes what another process releases, up to that number. Each request that is refused costs Redis time.
const (
	spare       = 6
	fewestAsked = 12
)

// guards is how long after the first place the second asks.
const guards = 60 * time.Millisecond

// ofLine reports whether a message on the channel of the name is that of a release which has woken the line itself. It
// has a needless zero in front, which changes no number for Redisson.
func ofLine(message string) bool { return len(message) > 1 && message[0] == '0' }

// Config configures Lines.
type Config[K comparable] struct {
	Channels *pubsub.Channels
	Channel  func(key K) string // of the name
	Lines    func(key K) bool   // the waiters of the key have a line
	Own      string             // a channel of the Client that is no channel of a name, or ""

	// Uncounted waiters enter the line even if nobody can count who hears a message; see [pubsub.Channels.Counted].
	Uncounted bool

	// Waiter returns a new waiter, which stands for a queue in the line. It is woken on the channel of the name, with a
	// colon and Part behind it. It is equal to Part, or begins with Part and a colon.
	Waiter func(key K) string
	Part   func(key K) string

	// Leave takes a waiter out of the line, and wakes the next one if it had been woken.
	Leave func(key K, waiter string)
}

// Lines has the places of a Client. It is safe for concurrent use, except that Ask, Granted and Refused of one key must
// not run at the same time.
type Lines[K comparable] struct {
	cfg Config[K]

	size atomic.Int64 // len(places), to be read without mu

	mu     sync.Mutex
	places map[K]*place
}

// New returns Lines without places.
func New[K comparable](cfg Config[K]) *Lines[K] {
	return &Lines[K]{cfg: cfg, places: make(map[K]*place)}
}

// place is that of a queue.
type place struct {
	waiter string
	wake   func(in time.Duration)
	listen func(brief bool) (stop func()) // on the channel of the name

	mu        sync.Mutex
	confirmed bool   // the channel of the waiter is subscribed
	entered   bool   // the waiter may be in the line
	follows   bool   // listen was called
	briefly   bool   // until the next grant
	stop      func() // ends listen, once that has returned
	left      bool   // nobody waits any more

	place int           // of the last refusal; 0: none, or not in the line
	head  time.Duration // when the head of the queue came that asked last
	came  int           // requests that were granted before it, whose releases may be gathered
	at    time.Time     // when they were
	most  int           // how many requests to ask for; 0: all
}

// Listens implements the function of waitqueue.Config.
func (l *Lines[K]) Listens(key K) bool {
	channels := l.cfg.Channels
	return l.cfg.Lines(key) && !channels.Idle(l.cfg.Own) && channels.Subscribed(l.channel(key))
}

// channel returns the channel on which the waiter of a queue is woken.
func (l *Lines[K]) channel(key K) string { return l.cfg.Channel(key) + ":" + l.cfg.Part(key) }

// Listen implements the function of waitqueue.Config. It may have to ask a cluster for its kind of channels.
func (l *Lines[K]) Listen(key K, wake func(in time.Duration)) (stop func()) {
	channels, channel := l.cfg.Channels, l.cfg.Channel(key)
	if channels.Decide(); !l.cfg.Lines(key) || !channels.Counted() && !l.cfg.Uncounted {
		return channels.Subscribe(channel, func(string) { wake(0) }, false)
	}
	p := &place{waiter: l.cfg.Waiter(key), wake: wake, head: -1}
	p.listen = func(brief bool) func() { return channels.Subscribe(channel, p.heard, brief) }
	l.mu.Lock()
	l.places[key] = p
	l.size.Store(int64(len(l.places)))
	l.mu.Unlock()
	end := channels.Receive(l.channel(key), p.received, func() { p.follow(false) })
	return func() {
		end()
		l.mu.Lock()
		if l.places[key] == p {
			delete(l.places, key)
			l.size.Store(int64(len(l.places)))
		}
		l.mu.Unlock()
		if p.leave() {
			l.cfg.Leave(key, p.waiter)
		}
	}
}

// leave ends what the place listens to, and reports whether its waiter may be in the line.
func (p *place) leave() (entered bool) {
	p.mu.Lock()
	stop := p.stop
	entered, p.entered, p.left, p.stop = p.entered, false, true, nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
	return entered
}

// received handles a message on the channel of the waiter: the ms after which to ask, a blank, and the waiter. "" is a
// confirmation of the subscription.
func (p *place) received(message string) {
	in, waiter, _ := strings.Cut(message, " ")
	switch ms, _ := strconv.ParseInt(in, 10, 64); {
	case message == "":
		p.mu.Lock()
		p.confirmed = true
		p.mu.Unlock()
		p.wake(0)
	case waiter != p.waiter:
	case ms > 0:
		p.wake(redisconn.Duration(ms) + time.Millisecond)
	default:
		p.wake(0)
	}
}

// heard handles a message on the channel of the name.
func (p *place) heard(message string) {
	p.mu.Lock()
	inLine := p.entered
	p.mu.Unlock()
	if !inLine || !ofLine(message) {
		p.wake(0)
	}
}

// follow listens on the channel of the name too, briefly until the next grant.
func (p *place) follow(briefly bool) {
	p.mu.Lock()
	follows := p.follows || p.left
	if !follows {
		p.follows, p.briefly = true, briefly
	}
	p.mu.Unlock()
	if follows {
		return
	}
	stop := p.listen(briefly)
	p.mu.Lock()
	left := p.left
	p.stop = stop
	p.mu.Unlock()
	if left {
		stop()
	}
}

func (l *Lines[K]) placeOf(key K) *place {
	if l.size.Load() == 0 { // as long as nobody has to wait
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.places[key]
}

// Ask returns the waiter as which the head of a queue asks, so that it enters the line if it is refused, or "" if it
// cannot enter yet.
func (l *Lines[K]) Ask(key K) (waiter string) {
	p := l.placeOf(key)
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.confirmed {
		return ""
	}
	p.entered = true // also if the reply is lost
	return p.waiter
}

// Releases returns the waiter of a queue that may be in the line, or "". Redis does not send it the message of a
// release of its own process. The reply says instead that it is to ask, and Asks passes that on.
func (l *Lines[K]) Releases(key K) (waiter string) {
	p := l.placeOf(key)
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.entered {
		return ""
	}
	return p.waiter
}

// Asks makes the queue of a key ask, because a release has told its waiter to.
func (l *Lines[K]) Asks(key K) {
	if p := l.placeOf(key); p != nil {
		p.wake(0)
	}
}

// Next reports whether nobody else is ahead of the queue of a key, as far as is known: then it asks in the pipeline of
// a release of its own process.
func (l *Lines[K]) Next(key K) bool {
	p := l.placeOf(key)
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.place <= 1
}

// Gather returns how many requests a reply has granted just now, while others of the queue wait on. Callers that hold a
// permit for a moment then release it together, in one script. Gather counts the requests of a reply once.
func (l *Lines[K]) Gather(key K) (holders int) {
	p := l.placeOf(key)
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	holders, p.came = p.came, 0
	if time.Since(p.at) >= calls.Patience { //nolint:forbidigo // as in refused
		return 0
	}
	return holders
}

// Same reports whether the head of a queue, which came at an instant, is the one for which Same was called last.
func (l *Lines[K]) Same(key K, came time.Duration) bool {
	p := l.placeOf(key)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	same := p.head == came
	p.head = came
	return same
}

// Most returns how many of n requests to ask for. While a queue is refused, a few more than were granted last are
// enough: to send all of a long queue for each grant would cost more than the grant.
func (l *Lines[K]) Most(key K, n int) int {
	p := l.placeOf(key)
	if p == nil {
		return n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most == 0 {
		return n
	}
	return min(n, p.most)
}

// Granted notes that the head of a queue was granted what it had asked for. So it is not in the line.
func (l *Lines[K]) Granted(key K) {
	p := l.placeOf(key)
	if p == nil {
		return
	}
	p.mu.Lock()
	var stop func()
	p.most, p.place, p.came = 0, 0, 0
	if p.entered = false; p.briefly {
		stop, p.stop, p.follows, p.briefly = p.stop, nil, false, false
	}
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Refusal is a reply to the head of a queue.
type Refusal struct {
	Place   int           // 1, 2, or 3 for any behind them; 0 if Redis let it not in; -1 if it did not ask from a place
	Unheard bool          // the release may not wake the line, but will be published on the channel of the name
	Silent  bool          // the release will not be published at all
	Until   time.Duration // the end of the lease; negative: there is none
	Granted int           // requests that were granted before it
}

// silentPoll returns the time until a waiter asks again while the holder's release will tell nobody, or 0 if the poll
// decides. The first waiter in the line asks for all processes, about as often as libraries that can only poll. The
// second asks in case the first has died.
func silentPoll(place int) time.Duration {
	switch place {
	case 1:
		return 20*time.Millisecond + rand.N(40*time.Millisecond)
	case 2:
		return 500 * time.Millisecond
	case 3:
		return 0
	}
	return 50*time.Millisecond + rand.N(200*time.Millisecond) // in no line: one of nobody knows how many
}

// Refused returns the time until the next attempt, or 0 if the poll decides.
func (l *Lines[K]) Refused(key K, r Refusal) time.Duration {
	after := l.refused(key, r)
	if r.Silent {
		if poll := silentPoll(r.Place); poll > 0 && (after == 0 || poll < after) {
			return poll
		}
	}
	return after
}

// refused is Refused for what is not released in silence.
func (l *Lines[K]) refused(key K, r Refusal) time.Duration {
	after := time.Duration(0)
	if r.Until >= 0 {
		after = r.Until + time.Millisecond
	}
	p := l.placeOf(key)
	if p == nil {
		return after
	}
	p.mu.Lock()
	p.most, p.place = max(fewestAsked, r.Granted+spare), r.Place
	p.came, p.at = r.Granted, time.Now() //nolint:forbidigo // it is compared with a bound of processor time
	if r.Place == 0 {
		p.entered, p.confirmed = false, false // it does not try again: a release meanwhile would find it in no line
	}
	p.mu.Unlock()
	if r.Unheard || r.Place == 0 {
		p.follow(r.Place != 0)
	}
	switch {
	case r.Place == 2 && after > 0:
		after += guards
	case r.Place == 3:
		after = 0
	}
	return after
}
