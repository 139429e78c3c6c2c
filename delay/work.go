package delay

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	mostLosses   = 25                 // of its lease after which a task has failed
	mostFailed   = 10_000             // failed tasks that are kept
	failedStays  = 7 * 24 * time.Hour // how long they are kept
	longestPause = 5 * time.Second
	yielding     = 4 * time.Millisecond // after others, at most, asks a process that came after another
)

// words are the outcomes as the script takes them.
var words = map[Outcome]string{Done: "done", Retried: "again", Exhausted: "failed", HandedBack: "back"}

// buildClaim sends what a server has to record and wants.
func (c *Client) buildClaim(name string, batch []*waitqueue.Waiter[*server]) (calls.Call, time.Duration, bool) {
	s := batch[0].Value
	next, again, over := s.next()
	if next == nil {
		if over {
			batch[0].Grant()
		}
		return calls.Call{}, again, false
	}
	args := make([]any, 0, 11+4*len(next.ends))
	args = append(args, next.number, max(recordMillis, redisconn.Millis(2*s.queue.config.lease)),
		s.queue.config.lease.Microseconds(), next.wanted, ahead.Microseconds(),
		mostLosses, mostFailed, failedStays.Microseconds(), tokenMillis,
		c.redis.Channels.Verb(), scripts.DelayChannel(name))
	for _, e := range next.ends {
		args = append(args, words[e.outcome], e.id, e.token, micros(e.pause))
	}
	keys := append(keysOf(name), c.recordKey(name, "claims"), scripts.DelayKey(name, "token"))
	return calls.Call{Call: scripts.DelayWork.Call(keys, args...)}, 0, true
}

// applyClaim begins the tasks that were claimed. After an error the server sends the same call again, so that it gets
// the tasks whose reply was lost.
func (c *Client) applyClaim(
	_ string, batch []*waitqueue.Waiter[*server], r redisconn.Reply,
) (time.Duration, error) {
	s := batch[0].Value
	event, found, waits, err := readClaim(&r)
	if err != nil {
		endures := s.trouble.Endures(err, c.wheel.Now(), s.queue.config.lease) && s.begun
		if redisconn.Permanent(err) || redisconn.IsLoginRefused(err) && !endures {
			c.monitor.failed(err)
			return 0, err
		}
		c.monitor.repeated(err)
		return s.trouble.Pause(pause(), min(longestPause, s.queue.config.lease/6)), nil
	}
	s.begun = true
	s.trouble.Answered()
	s.mu.Lock()
	call := s.sent
	s.sent = nil
	s.more = call.wanted > 0 && len(found) == call.wanted
	s.mu.Unlock()
	refused := s.add(found, waits, call.began)
	if errors.Is(refused, wheel.ErrStopped) {
		return 0, refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.wheel.Now()
	if refused != nil { // the wheel is full
		c.monitor.failed(refused)
		s.paused = now.Add(pause())
	}
	waited := !call.began.Before(s.claims)
	s.claims = now
	switch {
	case s.stopped, s.more && s.roomLocked() > 0:
		return waitqueue.AtOnce, nil
	case len(s.ends) > 0 && !s.kicks: // the call had no room for them
		return waitqueue.AtOnce, nil
	case s.roomLocked() == 0:
		return 0, nil // until a worker is free
	case event < 0:
		s.claims = now.Add(MaxDelay)
		return 0, nil // until a message comes
	case call.wanted > 0 && waited && (len(found) == 0 || waits[0] > 2*early):
		event += rand.N(yielding)
	}
	event = max(time.Millisecond, event-early)
	s.claims = now.Add(event)
	return event, nil
}

// pause returns how long a process claims no tasks after an error of Redis, or of the wheel. While Redis goes on
// failing, it doubles up to longestPause, or a sixth of the lease.
func pause() time.Duration { return 100*time.Millisecond + rand.N(400*time.Millisecond) }

// readClaim reads the reply of delay_work.
func readClaim(r *redisconn.Reply) (event time.Duration, found []*attempt, waits []time.Duration, err error) {
	reply, err := r.Slice()
	if err != nil {
		return 0, nil, nil, err
	}
	if len(reply) < 2 || (len(reply)-2)%6 != 0 {
		return 0, nil, nil, r.Unexpected()
	}
	read := fieldReader{fields: reply}
	event = read.micros()
	read.micros()
	for len(read.fields) > 0 && !read.bad {
		a := &attempt{}
		a.ID = read.text()
		task := read.text()
		waits = append(waits, time.Duration(read.number())*time.Microsecond)
		a.Failures, a.Losses = int(read.number()), int(read.number())
		a.Token = read.number()
		a.headers, a.Payload = readTask(task)
		found = append(found, a)
	}
	if read.bad {
		return 0, nil, nil, r.Unexpected()
	}
	return event, found, waits, nil
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
		n, err := strconv.ParseInt(v, 10, 64)
		f.bad = f.bad || err != nil
		return n
	}
	f.bad = true
	return 0
}

func (f *fieldReader) micros() time.Duration {
	n := f.number()
	if n < 0 {
		return -1
	}
	return time.Duration(min(n, int64(MaxDelay/time.Microsecond))) * time.Microsecond
}
