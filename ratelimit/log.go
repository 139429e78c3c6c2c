package ratelimit

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// slidingLog is the engine of Redisson's RRateLimiter: an entry for every grant, which leaves after the interval. Of a limit of the
// scope PerClient it only says what it is, as an *ownLimit, and decides nothing.
type slidingLog struct{ client *Client }

// recount is how often a call counts the whole log, in case a peer has charged something that is not in it.
const recount = time.Minute

// logKeys are the keys of a limiter.
func logKeys(name string) []string {
	return []string{name, scripts.SuffixName(name, "value"), scripts.SuffixName(name, "permits")}
}

// entry is one of a log: in Redis a member, in the memory of the scope PerClient a stamp.
type entry struct {
	member string
	stamp  stamp
}

// member is an entry of the log as Redisson packs it: the length of the id, the id, and n in 32 bits, low byte first.
func member(id [16]byte, n int64) string {
	b := append(make([]byte, 0, 21), byte(len(id)))
	return string(binary.LittleEndian.AppendUint32(append(b, id[:]...), uint32(n)))
}

// newMember is a member with an id of its own.
func newMember(n int64) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return member(id, n)
}

func size(member string) int64 {
	return int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:])))
}

func (s slidingLog) local(last view) (Limit, bool) {
	v, ok := last.(*logView)
	if !ok {
		return Limit{}, false
	}
	return Limit{Rate: v.rate, Per: v.interval, Burst: v.rate}, true
}

func (s slidingLog) decide(ctx context.Context, rdb scripts.Client, key string, last view, calls []*call, fifo bool) (view, error) {
	var ms []string
	for _, c := range calls {
		if c.n > 0 {
			ms = append(ms, newMember(c.n))
		}
	}
	v, reply, err := s.ask(ctx, rdb, key, last, ms, fifo)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return newOwnLimit(reply), nil
	}
	left := v.left
	for i, m := range ms {
		if reply[4+i] == 0 {
			left += size(m) // before
		}
	}
	next := 0
	for _, c := range calls {
		c.res = Result{Limit: v.rate, Remaining: max(0, left), ResetAfter: v.reset}
		if c.n == 0 {
			c.res.Allowed = left > 0
			continue
		}
		m, answer := ms[next], reply[4+next]
		next++
		switch {
		case answer == 0:
			left -= c.n
			c.res.Allowed, c.res.Granted, c.res.Remaining = true, c.n, max(0, left)
			c.res.grant = []entry{{member: m}}
		case answer < 0:
			c.err = ErrExceedsLimit
		default:
			c.res.RetryAfter = micros(answer)
			v.denied = append(v.denied, refused{c.n, c.res.RetryAfter})
			if fifo {
				v.denied = v.denied[:1] // what comes after the first was not looked at
			}
		}
	}
	return v, nil
}

// ask runs the script, which is idempotent, and once more if it found the state not to be trusted. Without a view the reply is that
// of the scope PerClient.
func (s slidingLog) ask(ctx context.Context, rdb scripts.Client, key string, last view, ms []string, fifo bool) (*logView, []int64, error) {
	rate, order := "", 0 // an unknown rate makes the script count the whole log
	counted := time.Now()
	if v, ok := last.(*logView); ok && time.Since(v.counted) < recount {
		rate, counted = v.rateText, v.counted
	} else if len(ms) == 0 {
		counted = time.Time{} // a look writes nothing, so the next call counts as well
	}
	if fifo {
		order = 1
	}
	args := []any{rate, order}
	for _, m := range ms {
		args = append(args, m)
	}
	keys := logKeys(key)
	reply, err := ints(scripts.RateLog.Run(ctx, rdb, keys, args...), 3, nil)
	if redis.HasErrorPrefix(err, "STALE") {
		reply, err = ints(scripts.RateLog.Run(ctx, rdb, keys, args...), 3, nil)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(reply) < 4+len(ms) {
		return nil, reply, nil
	}
	return newLogView(reply, counted), reply, nil
}

// logView knows of the requests that were denied.
type logView struct {
	rate, left int64
	rateText   string
	interval   time.Duration
	reset      time.Duration
	counted    time.Time
	denied     []refused
}

func newLogView(reply []int64, counted time.Time) *logView {
	return &logView{
		rate: reply[0], rateText: strconv.FormatInt(reply[0], 10), interval: micros(reply[1] * 1000),
		left: reply[2], reset: micros(reply[3]), counted: counted,
	}
}

type refused struct {
	n     int64
	delay time.Duration
}

func (v *logView) deny(n int64, passed time.Duration) (Result, bool) {
	for _, d := range v.denied {
		if d.n <= n && n <= v.rate && passed < d.delay {
			return Result{
				Limit: v.rate, Remaining: max(0, min(v.left, d.n-1)), RetryAfter: d.delay - passed, ResetAfter: max(0, v.reset-passed),
			}, true
		}
	}
	return Result{}, false
}

func (v *logView) wait(total int64, passed time.Duration) time.Duration {
	var longest time.Duration
	for _, d := range v.denied {
		if d.n <= total {
			longest = max(longest, d.delay-passed)
		}
	}
	// Whatever is left and whatever leaves: in each interval no more than the rate.
	if rounds := (total - max(0, v.left) - 1) / v.rate; total > v.left && rounds > 0 {
		longest = max(longest, time.Duration(rounds)*v.interval-passed)
	}
	return longest
}

// giveBack takes entries out of the log.
func (c *Client) giveBack(ctx context.Context, l *lane, grant []entry) (bool, error) {
	if err := c.enter(); err != nil {
		return false, err
	}
	defer c.leave()
	given := false
	for _, e := range grant {
		if e.member == "" {
			given = l.giveBackOwn(e.stamp) || given
			continue
		}
		n, err := scripts.RateReturn.Run(ctx, c.rdb, logKeys(l.key), e.member, size(e.member)).Int()
		if err != nil {
			return given, explain(l.key, err)
		}
		given = given || n == 1
	}
	return given, nil
}

// reserve enters a grant into the log at the time from which on it may be used.
func (s slidingLog) reserve(l *lane, n int64, ahead time.Duration) (time.Duration, cancelFunc, error) {
	c := s.client
	m, sentAt := newMember(n), time.Now()
	c.stats.scripts.Add(1)
	reply, err := ints(scripts.RateLogReserve.Run(context.Background(), c.rdb, logKeys(l.key), m, ahead.Microseconds()), 3, nil)
	switch {
	case err != nil:
		return 0, nil, err
	case len(reply) == 3:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.learn(newOwnLimit(reply), sentAt)
		return l.reserveOwn(n, ahead)
	case reply[3] == -1:
		return 0, nil, ErrExceedsLimit
	case reply[3] < 0:
		return 0, nil, ErrWouldExceedDeadline
	}
	cancel := func(ctx context.Context) (bool, error) {
		return scripts.RateReturn.Run(ctx, c.rdb, logKeys(l.key), m, n).Bool()
	}
	return micros(reply[3]), cancel, nil
}

// isFinal reports whether an error is about the request, not about Redis.
func isFinal(err error) bool {
	return errors.Is(err, ErrWouldExceedDeadline) || errors.Is(err, ErrExceedsLimit)
}
