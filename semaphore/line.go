package semaphore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Processes that wait for permits have a line in Redis; see package line. The first request of a process that waits
// stands there for the process. A call that frees permits wakes as many processes as it may serve. A large request that
// is first keeps others off the free permits.

func (c *Client) newLines(fair bool) *line.Lines[string] {
	channel := func(name string) string { return keysOf(name, fair).channel }
	return line.New(line.Config[string]{
		Channels: c.redis.Channels, Channel: channel,
		Lines:     func(string) bool { return true },
		Uncounted: fair,
		Waiter:    func(string) string { return c.hearsAs() + ":" + strconv.FormatUint(c.lastWaiter.Add(1), 10) },
		Part:      func(string) string { return c.hearsAs() },
		Leave:     func(name, waiter string) { c.leaveLine(name, fair, waiter) },
	})
}

// hearsAs returns the name under which the waiters of this Client hear of their turn. A star says that nobody can count
// who hears.
func (c *Client) hearsAs() string {
	if c.redis.Channels.Counted() {
		return c.owner
	}
	return "*" + c.owner
}

// liveness returns how long Redis considers a process alive after its last query. A waiting process queries at least
// every poll interval.
func liveness(poll time.Duration) time.Duration { return 3*poll + time.Second }

// leaveLine takes a waiter out of the line. If that fails, a call that frees permits finds out that it is gone.
func (c *Client) leaveLine(name string, fair bool, waiter string) {
	c.gate.EnterInside()
	c.redis.Sender.Go(context.Background(), calls.Request{
		Key: name, Late: func(redisconn.Reply) { c.gate.Leave() },
		Build: func() scripts.Call {
			k := keysOf(name, fair)
			return scripts.SemLeave.Call([]string{k.permits}, waiter, c.redis.Channels.Verb(), k.channel)
		},
	})
}

// inLine returns the argument with which a batch asks from its place in the line, as permit_acquire.lua describes.
// It is "" if no request waits, or if the process cannot enter the line.
func inLine[T any](
	c *Client, lines *line.Lines[string], name string, batch []*waitqueue.Waiter[T], more bool,
	of func(*T) *acquisition,
) string {
	head := slices.IndexFunc(batch, (*waitqueue.Waiter[T]).Waits)
	if head < 0 {
		return ""
	}
	waiter := lines.Ask(name)
	if waiter == "" {
		return ""
	}
	var text strings.Builder
	text.WriteString(waiter + " " + strconv.FormatInt(redisconn.Millis(liveness(c.poll)), 10) + " ")
	if lines.Same(name, of(&batch[head].Value).began) {
		text.WriteByte('=')
	}
	for _, w := range batch {
		if w.Waits() {
			waited := c.monitor.clock.Since(of(&w.Value).began)
			text.WriteString(strconv.FormatInt(max(waited, 0).Milliseconds(), 10))
		} else {
			text.WriteByte('-')
		}
		text.WriteByte(',')
	}
	if more {
		text.WriteByte('0')
	}
	return text.String()
}

// toItself is added to the first result of a release after which the waiter of its process is to ask.
const toItself = 2

// place is what a script replies to a waiter about the line.
type place struct {
	asked   bool
	place   int // -1 if it does not have to be in the line; else as in line.Refusal
	unheard bool
}

// parsePlace reads the end of a reply, which is empty if the batch did not ask from the line.
func parsePlace(v []int64) (p place, err error) {
	if len(v) == 0 {
		return p, nil
	}
	if v[0] < -1 || v[0] > 3 || v[1] != 0 && v[1] != 1 {
		return p, scripts.Unexpected(v)
	}
	return place{asked: true, place: int(v[0]), unheard: v[1] == 1}, nil
}

// apply notes the place, and how many requests were granted. The script has said when to ask again.
func (p place) apply(lines *line.Lines[string], name string, granted int) {
	switch {
	case !p.asked:
	case p.place < 0:
		lines.Granted(name)
	default:
		lines.Refused(name, line.Refusal{Place: p.place, Unheard: p.unheard, Until: -1, Granted: granted})
	}
}
