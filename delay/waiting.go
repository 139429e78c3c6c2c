package delay

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// A process with a free worker is in the waiting list of its queue, in Redis. The scripts tell the first processes of
// the list their places, in the reply to a call or by a message on a channel of the process, and when the next event
// is: a task becomes due or a lease ends. The first process asks then. The guards behind it ask some time later, in
// case those before them have not. The others only poll. A process without room leaves the list with the call that
// claims its last task, and asks for nothing.
//
// Until its channel is subscribed, and where the list cannot be used, a process asks at each event, and hears of
// earlier ones on the channel of the queue. Processes of earlier versions always do so. The first processes of the list
// listen to that channel too, for these publish on it alone.
const (
	unlisted  = -1              // the place of a process that cannot be in the list
	lastPlace = 3               // of the first processes; see places in delay_waiting.lua
	listening = 5 * time.Second // for which a process listens to the channel of the queue after it was among the first

	listNotified = "1" // a message for processes that are not in the list: the first ones of the list were told
	areYouThere  = "0" // a message that says nothing
)

// guardAfter returns how long after an event the process at a place asks. See missed_after in delay_waiting.lua.
func guardAfter(place int) time.Duration {
	if place < 2 {
		return 0
	}
	return time.Duration(place-2)*50*time.Millisecond + 30*time.Millisecond + rand.N(20*time.Millisecond)
}

// waiting is what a server knows of its place in the waiting list. The mu of the server guards it, except for the
// subscriptions.
type waiting struct {
	place   int       // 1 is the first; 0: not in the list, or it has no room
	reached bool      // the channel of the process is subscribed
	probes  bool      // the next call is to find out whether messages reach the process
	asks    bool      // the next attempt asks for tasks: an event may have been missed
	pollAt  time.Time // when it asks at the latest while it is in the list
	missed  *notice   // that came while a call was in flight

	hearsOwn   bool      // the channel of the process is to be subscribed
	hearsQueue bool      // the channel of the queue is
	wasFirst   time.Time // when it was last among the first of the list

	tuning    sync.Mutex // guards the fields below
	stopOwn   func()
	stopQueue func()
}

// notice tells a process its place, and when the next event is.
type notice struct {
	place int
	event time.Time
}

// readNotice reads a message on the channel of a process.
func readNotice(message string, now time.Time) (n notice, ok bool) {
	place, wait, _ := strings.Cut(message, " ")
	at, err := strconv.Atoi(place)
	us, err2 := strconv.ParseInt(wait, 10, 64)
	if err != nil || err2 != nil || at < 1 || at > lastPlace {
		return n, false
	}
	most := int64(MaxDelay / time.Microsecond)
	return notice{at, now.Add(time.Duration(max(-most, min(us, most))) * time.Microsecond)}, true
}

// heardOwn receives a message on the channel of the process.
func (s *server) heardOwn(message string) {
	if message == areYouThere {
		return
	}
	n, ok := readNotice(message, s.queue.client.wheel.Now())
	s.mu.Lock()
	switch {
	case message == "": // it is subscribed now, and messages may have been missed
		s.reached, s.probes, s.asks = true, true, true
	case !ok: // of a later version
		s.asks = true
	case s.sent == nil:
		s.heedLocked(n)
	case s.missed == nil || n.place <= s.missed.place: // the reply tells the place, and may be older or newer
		s.missed = &n
	}
	s.mu.Unlock()
	s.queue.client.claims.Kick(s.queue.tag)
}

// heedLocked applies a notice. Places only become better, unless a reply says otherwise.
func (s *server) heedLocked(n notice) {
	if s.place <= 0 {
		return // it has left the list since
	}
	now := s.queue.client.wheel.Now()
	asksAt := n.event.Add(guardAfter(n.place) - early)
	if n.place == 1 && n.event.Sub(now) <= ahead { // it can claim the task now
		asksAt = now
	}
	if n.place < s.place || asksAt.Before(s.nextDue) {
		s.nextDue = asksAt
	}
	s.place = min(s.place, n.place)
	s.listenLocked()
}

// heardQueue receives a message on the channel of the queue.
func (s *server) heardQueue(message string) {
	s.mu.Lock()
	isFirst := s.place > 0 && s.place <= lastPlace || s.sent != nil
	heeds := s.place == unlisted || isFirst && message != listNotified
	s.asks = s.asks || heeds
	s.mu.Unlock()
	if heeds {
		s.queue.client.claims.Kick(s.queue.tag)
	}
}

// listenLocked decides on the channels that are to be subscribed.
func (s *server) listenLocked() {
	c := s.queue.client
	now, queue := c.wheel.Now(), s.place == unlisted
	if s.place > 0 && s.place <= lastPlace {
		queue, s.wasFirst = true, now
	}
	queue = queue || s.hearsQueue && now.Sub(s.wasFirst) < listening
	own := c.redis.Channels.Counted()
	if own != s.hearsOwn || queue != s.hearsQueue {
		s.hearsOwn, s.hearsQueue = own, queue
		c.goInside(s.tune)
	}
}

// tune subscribes the channels that the server listens to, and ends the other subscriptions. It may block on the
// network.
func (s *server) tune() {
	channels := s.queue.client.redis.Channels
	s.tuning.Lock()
	defer s.tuning.Unlock()
	channels.Decide()
	s.mu.Lock()
	own, queue := s.hearsOwn && !s.over, s.hearsQueue && !s.over
	s.mu.Unlock()
	tune := func(stop *func(), wanted bool, listen func() func()) {
		switch {
		case wanted && *stop == nil:
			*stop = listen()
		case !wanted && *stop != nil:
			(*stop)()
			*stop = nil
		}
	}
	name := s.queue.name
	tune(&s.stopOwn, own, func() func() {
		return channels.Receive(scripts.DelayProcessChannel(name, s.queue.client.process), s.heardOwn, nil)
	})
	tune(&s.stopQueue, queue, func() func() {
		return channels.Subscribe(scripts.DelayChannel(name), s.heardQueue, false)
	})
}

// nextPoll returns when a process in the list polls. The Group spreads its polls in the same way.
func (c *Client) nextPoll(now time.Time) time.Time {
	return now.Add(c.poll/5 + rand.N(c.poll-c.poll/5+1))
}
