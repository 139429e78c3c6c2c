package calls

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
)

const (
	// soloAfter is the number of calls, each at most soloWithin after the one before, after which a call may go solo.
	soloAfter  = 16
	soloWithin = 10 * time.Millisecond

	// soloRest is how long no call goes solo after one whose context has ended, which costs the connection, and after a
	// connection that could not be made.
	soloRest = time.Second

	// hooksFor is how long the redis client is taken to have no hooks.
	hooksFor = time.Second
)

// solo is a connection for calls that are sent alone, by a caller whose context may end. go-redis does not return at
// the end of a context. So a caller either leaves the call to another goroutine, which costs two goroutine switches, as
// long together as half a call on a near server; or it owns the connection, whose deadline moves to the past when the
// context ends.
//
// On the caller's goroutine nothing else may block: the connection is made in the background, and no call goes solo if
// the redis client has hooks or a Limiter. Only a client of one server has a solo: that of Sentinels closes its own
// connections after a failover.
type solo struct {
	rdb   *redis.Client
	start func(f func()) bool // runs f in the background

	mu        sync.Mutex
	own       *redis.Client // has one connection
	conn      net.Conn      // of own, or nil
	preparing bool
	dialing   bool
	busy      bool      // with a call
	timed     Caller    // may end the call, if SubmitTimed sends it
	calls     uint64    // begun and ended ones
	ended     bool      // the call must end
	off       bool      // for good: rdb has hooks, or the Sender is closed
	hookless  time.Time // when rdb had no hooks
	rest      time.Time // until then no call goes solo
}

// newSolo returns the solo of a client, or nil if it has none. It starts nothing.
func newSolo(rdb redis.UniversalClient, start func(f func()) bool) *solo {
	if c, ok := rdb.(*redis.Client); ok && !redisconn.IsSentinel(c) && c.Options().Limiter == nil {
		return &solo{rdb: c, start: start}
	}
	return nil
}

// sendSolo sends a call on the goroutine of its user, and returns after the reply or at the end of ctx. Then the call
// is sent once more, over the client of the user, for its Caller to get the reply: it may have executed. A call that
// must not execute twice ends. sendSolo returns false if the call must be sent another way.
func (s *Sender) sendSolo(ctx context.Context, j *Job, c Caller, key string, l *line, timed bool) bool {
	if s.solo == nil || ctx.Err() != nil {
		return false
	}
	now, lone := l.lone()
	var ends Caller
	if timed {
		ends = c
	}
	if !lone || !s.solo.begin(now, ends) {
		return false
	}
	s.Gate.EnterInside()
	*j = Job{caller: c, key: key, line: l}
	if !j.build() {
		s.solo.end(now)
		return true
	}
	if j.call.Next != nil {
		s.solo.end(now)
		l.add(j, false)
		return true
	}
	stop := s.solo.watch(ctx)
	l.sendBatch([]*Job{j}, func() { s.executeOne(j, s.solo.own) }, j.tried)
	stop()
	ended := s.solo.end(s.Wheel.Now())
	err := j.reply.Err()
	gone, lost := errors.Is(err, errNoConn), ended && err != nil && redisconn.OfConnection(err)
	switch {
	case lost && !gone && j.call.Script.IsOnceOnly():
		j.reply.Cmd = Failed(ErrInterrupted)
		j.deliver()
	case gone || lost:
		j.reply.Ambiguous = j.reply.Ambiguous || redisconn.MayHaveExecuted(err)
		l.add(j, false)
	default:
		j.tried()
	}
	return true
}

// begin reports whether a call may go solo now, which timed may end if it is not nil. Then end must follow.
func (s *solo) begin(now time.Time, timed Caller) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || s.dialing || s.off || now.Before(s.rest) {
		return false
	}
	if !s.preparing && (s.conn == nil || now.Sub(s.hookless) > hooksFor) {
		s.preparing = s.start(func() { s.prepare(now) })
	}
	if s.conn == nil {
		return false
	}
	s.busy, s.timed = true, timed
	s.calls++
	return true
}

// end ends the use by a call, and reports whether its context had ended.
func (s *solo) end(now time.Time) (ended bool) {
	s.mu.Lock()
	defer s.unlock()
	s.busy, s.timed = false, nil
	s.calls++
	if ended = s.ended; ended {
		s.rest, s.ended = now.Add(soloRest), false
	}
	return ended
}

// unlock unlocks mu. It closes the client if it is not to be used any more, or has lost its connection: go-redis does
// not dial at once after a failure.
func (s *solo) unlock() {
	var closes *redis.Client
	if !s.busy && !s.dialing && (s.off || s.conn == nil) {
		closes, s.own = s.own, nil
	}
	s.mu.Unlock()
	if closes != nil {
		_ = closes.Close()
	}
}

// interrupt ends the call if it is that of the Caller.
func (s *solo) interrupt(c Caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy && s.timed == c {
		s.interruptLocked()
	}
}

// watch ends the call when ctx ends, until stop is called.
func (s *solo) watch(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.calls
	return context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls == n {
			s.interruptLocked()
		}
	})
}

// interruptLocked ends the call.
func (s *solo) interruptLocked() {
	s.ended = true
	if s.conn != nil {
		_ = s.conn.SetDeadline(past)
	}
}

var past = time.Unix(1, 0)

// prepare finds out whether the redis client has hooks, and makes the connection.
func (s *solo) prepare(now time.Time) {
	hooked := true
	usercode.Apart(func() { hooked = hasHooks(s.rdb) }, func(*usercode.Failure) {})
	own := s.dials(now, hooked)
	if own == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soloRest)
	defer cancel()
	_ = own.Ping(ctx).Err()
	s.mu.Lock()
	defer s.unlock()
	s.dialing = false
	if s.conn == nil {
		s.rest = now.Add(2 * soloRest)
	}
}

// dials records whether the redis client has hooks, and returns the client whose connection is to be made, or nil.
func (s *solo) dials(now time.Time, hooked bool) *redis.Client {
	s.mu.Lock()
	defer s.unlock()
	s.preparing, s.off, s.hookless = false, s.off || hooked, now
	if s.off || s.busy || s.conn != nil {
		return nil
	}
	s.dialing = true
	if s.own == nil {
		s.own = s.newOwn()
	}
	return s.own
}

// close ends the call that is under way, which goes on over other connections, and closes the connection. A call with a
// time limit ends by itself.
func (s *solo) close() {
	s.mu.Lock()
	defer s.unlock()
	s.off = true
	if s.busy && s.timed == nil {
		s.interruptLocked()
	}
}

// renew closes the connection unless a call uses it: the node is being checked, because other connections to it failed.
func (s *solo) renew() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.unlock()
	if !s.busy && !s.dialing {
		s.conn = nil
	}
}

// newOwn returns a client with one connection, which only prepare makes.
func (s *solo) newOwn() *redis.Client {
	opt := redisconn.OwnOptions(s.rdb, 1)
	opt.DialerRetries = 1
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // has goroutines
	dial := opt.Dialer
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		dialing := s.dialing
		s.mu.Unlock()
		if !dialing {
			return nil, errNoConn
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conn = conn
		own := &soloConn{Conn: conn, solo: s}
		if raw, ok := conn.(syscall.Conn); ok {
			return &rawSoloConn{soloConn: own, Conn: raw}, nil
		}
		return own, nil
	}
	return redis.NewClient(&opt)
}

// errNoConn is the error of a call whose connection is gone. As an error of dialing it says that nothing was sent.
var errNoConn = &net.OpError{Op: "dial", Err: errors.New("calls: the connection is gone")}

// soloConn is the connection of a solo. Its deadlines are in the past while the call must end.
type soloConn struct {
	net.Conn
	solo *solo
}

// rawSoloConn lets go-redis see whether the server has closed the connection.
type rawSoloConn struct {
	*soloConn
	syscall.Conn
}

func (c *soloConn) SetDeadline(t time.Time) error { return c.set(c.Conn.SetDeadline, t) }

func (c *soloConn) SetReadDeadline(t time.Time) error { return c.set(c.Conn.SetReadDeadline, t) }

func (c *soloConn) SetWriteDeadline(t time.Time) error { return c.set(c.Conn.SetWriteDeadline, t) }

func (c *soloConn) set(deadline func(time.Time) error, t time.Time) error {
	c.solo.mu.Lock()
	defer c.solo.mu.Unlock()
	if c.solo.ended {
		t = past
	}
	return deadline(t)
}

func (c *soloConn) Close() error {
	c.solo.mu.Lock()
	if c.solo.conn == c.Conn {
		c.solo.conn = nil
	}
	c.solo.mu.Unlock()
	return c.Conn.Close()
}

// hasHooks reports whether a client has hooks. They see a PING that is not sent.
func hasHooks(c *redis.Client) bool {
	conn := c.Conn() // has the hooks of c, and takes no connection before it needs one
	defer conn.Close()
	h := &innermost{}
	conn.AddHook(h)
	_ = conn.Ping(context.Background()).Err()
	return !h.alone
}

// innermost is a hook that sends nothing. It is alone if go-redis itself calls it, and no other hook.
type innermost struct{ alone bool }

func (h *innermost) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *innermost) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error {
		pc := make([]uintptr, 1)
		caller, _ := runtime.CallersFrames(pc[:runtime.Callers(2, pc)]).Next()
		h.alone = strings.HasPrefix(caller.Function, "github.com/redis/go-redis/v9.")
		return nil
	}
}

func (h *innermost) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
