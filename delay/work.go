package delay

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	mostLosses   = 25                 // of its lease after it had begun, with which a task has failed
	failedStays  = 7 * 24 * time.Hour // how long failed tasks are kept
	longestPause = 5 * time.Second
	asking       = 5 * time.Second      // after which a process without a free worker asks which tasks are overdue
	yielding     = 4 * time.Millisecond // at most; so much later asks a process outside of the list that found none
)

// words are the outcomes as the script takes them.
var words = map[Outcome]string{
	OutcomeDone: "done", OutcomeRetried: "again", OutcomeExhausted: "failed", OutcomeHandedBack: "back", begun: "begun",
}

// buildClaim sends what a server has to record and wants.
func (c *Client) buildClaim(name string, batch []*waitqueue.Waiter[*server]) waitqueue.Attempt {
	s := batch[0].Value
	next, again, over := s.next()
	if next == nil {
		if over {
			batch[0].Grant()
		}
		return waitqueue.Attempt{Again: again}
	}
	args := make([]any, 0, 17+4*len(next.notes))
	args = append(args, next.number, max(recordMillis, redisconn.Millis(2*s.queue.config.lease)),
		s.queue.config.lease.Microseconds(), next.wanted, ahead.Microseconds(),
		mostLosses, s.queue.config.failed, failedStays.Microseconds(), tokenMillis,
		c.redis.Channels.Verb(), scripts.DelayChannel(name), next.free, aloneFrom, next.check,
		next.process, next.room, next.probes)
	for _, e := range next.notes {
		detail := micros(e.pause)
		if e.outcome == OutcomeExhausted {
			detail = e.attempt.errText
		}
		args = append(args, words[e.outcome], e.attempt.ID, e.attempt.Token, detail)
	}
	key := func(part string) string { return scripts.DelayKey(name, part) }
	keys := append(keysOf(name), c.recordKey(name, "claims"), key("token"), key("waiting"), pausedKey(name))
	return waitqueue.Attempt{
		Call: calls.Call{Call: scripts.DelayWork.Call(keys, args...)},
		Read: func(r redisconn.Reply) (time.Duration, error) { return c.readWork(s, next, r) },
	}
}

// readWork begins the tasks that were claimed. After an error the server sends the same call again, so that it gets the
// tasks whose reply was lost.
func (c *Client) readWork(s *server, call *claim, r redisconn.Reply) (time.Duration, error) {
	reply, err := readClaim(&r, &s.clock, c.wheel.Now())
	if err != nil && s.hasLeft() {
		return waitqueue.AtOnce, nil
	}
	if err != nil {
		endures := s.trouble.Endures(err, c.wheel.Now(), s.queue.config.lease) && s.answered
		if redisconn.Permanent(err) || redisconn.IsLoginRefused(err) && !endures {
			c.monitor.failed(err)
			return 0, err
		}
		c.monitor.repeated(err)
		return s.trouble.Pause(pause(), min(longestPause, s.queue.config.lease/6)), nil
	}
	s.answered = true
	s.trouble.Answered()
	s.mu.Lock()
	found := reply.found
	s.checked, s.paused = true, reply.paused
	s.oldestDue, s.answeredAt = reply.oldest, reply.at
	s.more = call.wanted > 0 && len(found) == call.wanted
	if reply.careful {
		s.careful = call.firstSentAt.Add(carefully)
	}
	exhausted := s.recordedLocked(call, reply.read)
	s.placedLocked(call, reply.place)
	s.mu.Unlock()
	c.report(s.queue.name, reply.incidents)
	c.logExhausted(s.queue.name, exhausted)
	if refused := s.add(found, call.firstSentAt); errors.Is(refused, wheel.ErrStopped) {
		return 0, refused
	} else if refused != nil {
		c.monitor.failed(refused)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = nil // until here, notices wait for the reply
	now := c.wheel.Now()
	waited, event := !call.firstSentAt.Before(s.nextDue), reply.event // it was sent when a task was due
	s.nextDue = now                                                   // the next call may claim tasks at once
	missed := s.missed
	s.missed = nil
	switch {
	case s.stopped, s.more && s.roomLocked() > 0, s.place > 0 && s.roomLocked() == 0: // it has to leave the list
		return waitqueue.AtOnce, nil
	case len(s.notes) > 0 && !s.kicks: // the call had no room for them
		s.records = true
		return waitqueue.AtOnce, nil
	case s.roomLocked() == 0:
		return asking, nil // unless a worker becomes free
	case event < 0, s.place > lastPlace:
		event = MaxDelay // until a message comes
	case s.place <= 0 && call.wanted > 0 && waited && (len(found) == 0 || found[0].due.Sub(reply.at) > 2*early):
		event += rand.N(yielding)
	}
	s.nextDue = now.Add(max(time.Millisecond, reply.at.Add(event-early).Sub(now)) + guardAfter(s.place))
	if missed != nil {
		s.heedLocked(*missed)
	}
	event = s.nextDue.Sub(now)
	if s.place > 0 {
		event = min(event, s.pollAt.Sub(now))
	}
	return max(time.Millisecond, event), nil
}

// recordedLocked notes that Redis has read the ends of a call, but those from a number on. It returns the attempts that
// were the last of their tasks.
func (s *server) recordedLocked(call *claim, read int) (exhausted []*attempt) {
	var rest []note
	for _, e := range call.notes {
		switch {
		case e.outcome == begun:
			if a := e.attempt; a.alone() && !a.ended && a.began.IsZero() {
				_ = s.beginInTimeLocked(a) // or it is handed back
			}
		case read > 0:
			read--
			s.forgetLocked(e.attempt)
			if e.outcome == OutcomeExhausted {
				exhausted = append(exhausted, e.attempt)
			}
		default:
			rest = append(rest, e)
		}
	}
	if len(rest) > 0 {
		s.notes = append(rest, s.notes...)
	}
	return exhausted
}

// placedLocked notes the place in the waiting list that the reply to a call tells.
func (s *server) placedLocked(call *claim, place int) {
	if s.place = place; place == unlisted && call.process != "" && !s.asks {
		s.reached = false // until the channel is subscribed again
	}
	s.pollAt = s.queue.client.nextPoll(s.queue.client.wheel.Now())
	s.listenLocked()
}

// hasLeft reports whether the server is stopped, and the call that failed had only to leave the waiting list. Then it
// does not repeat the call: its entry goes when a message for it reaches nobody.
func (s *server) hasLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped || !s.unclaimedLocked() {
		return false
	}
	s.sent, s.place = nil, unlisted
	return true
}

// pause returns how long a process claims no tasks after an error of Redis. While Redis goes on failing, it doubles up
// to longestPause, or a sixth of the lease.
func pause() time.Duration { return 100*time.Millisecond + rand.N(400*time.Millisecond) }

// claimReply is the reply of delay_work.
type claimReply struct {
	at        time.Time     // when the script ran, at the latest
	event     time.Duration // until the next one, or negative
	read      int           // ends of attempts, from the first one; beginnings do not count
	careful   bool
	paused    bool
	incidents []Incident // without the name of the queue
	oldest    time.Time  // when the first of the pending tasks that are left is due, or far in the future
	place     int
	found     []*attempt
}

// readClaim reads the reply of delay_work that came at an instant.
func readClaim(r *redisconn.Reply, server *clock.Server, came time.Time) (claimReply, error) {
	fields, err := r.Slice()
	if err != nil {
		return claimReply{}, err
	}
	if len(fields) < 9 || len(fields)%3 != 0 {
		return claimReply{}, r.Unexpected()
	}
	read := fieldReader{fields: fields}
	reply := claimReply{event: read.micros()}
	read.number() // of the ends that were recorded
	reply.read = int(read.number())
	flag := read.number()
	reply.careful, reply.paused = flag == 1, flag == 2
	incidents, known := readIncidents(read.text())
	reply.incidents = incidents
	oldest := time.Duration(min(read.number(), int64(MaxDelay/time.Microsecond))) * time.Microsecond
	reply.place = int(read.number())
	now := time.Duration(read.number()) * time.Microsecond
	server.Read(now, r.SentAt, came)
	reply.at = server.Local(now)
	reply.oldest = reply.at.Add(oldest)
	begun := int(read.number())
	for len(read.fields) > 0 && !read.bad {
		a := &attempt{told: len(reply.found) < begun}
		a.ID = read.text()
		a.headers, a.Payload, a.attempts = readTask(read.text())
		counts, due, _ := strings.Cut(read.text(), "@")
		failures, counts, _ := strings.Cut(counts, ":")
		losses, token, _ := strings.Cut(counts, ":")
		a.Failures, a.Losses, a.Token = int(read.parse(failures)), int(read.parse(losses)), read.parse(token)
		a.due = reply.at.Add(time.Duration(read.parse(due))*time.Microsecond - now)
		reply.found = append(reply.found, a)
	}
	if read.bad || !known {
		return claimReply{}, r.Unexpected()
	}
	return reply, nil
}

// fieldReader reads fields of a reply one after the other.
type fieldReader struct {
	fields []any
	bad    bool
}

func (f *fieldReader) next() any {
	if len(f.fields) == 0 {
		f.bad = true
		return nil
	}
	v := f.fields[0]
	f.fields = f.fields[1:]
	return v
}

func (f *fieldReader) text() string {
	s, ok := f.next().(string)
	f.bad = f.bad || !ok
	return s
}

func (f *fieldReader) number() int64 {
	switch v := f.next().(type) {
	case int64:
		return v
	case string:
		return f.parse(v)
	}
	f.bad = true
	return 0
}

func (f *fieldReader) parse(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	f.bad = f.bad || err != nil
	return n
}

func (f *fieldReader) micros() time.Duration {
	n := f.number()
	if n < 0 {
		return -1
	}
	return time.Duration(min(n, int64(MaxDelay/time.Microsecond))) * time.Microsecond
}
