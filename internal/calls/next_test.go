package calls_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// one is a Caller of one call. It notes the order in which replies come.
type one struct {
	call    calls.Call
	given   bool // up before it is sent
	builds  int
	reply   redisconn.Reply
	applied int64 // which one it was
	order   *atomic.Int64
	done    chan struct{}
}

func newOne(order *atomic.Int64, call scripts.Call) *one {
	return &one{call: calls.Call{Call: call}, order: order, done: make(chan struct{})}
}

func (c *one) Build() (calls.Call, bool) {
	c.builds++
	return c.call, !c.given
}

func (c *one) Wanted() bool { return true }

func (c *one) Apply(r redisconn.Reply) {
	c.reply, c.applied = r, c.order.Add(1)
	close(c.done)
}

// batches counts the pipelines of a client, and how many commands the largest one had.
type batches struct{ n, largest atomic.Int64 }

func (b *batches) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *batches) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (b *batches) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			b.n.Add(1)
			b.largest.Store(max(b.largest.Load(), int64(len(cmds))))
		}
		return next(ctx, cmds)
	}
}

func TestSender_TheNextCall(t *testing.T) {
	t.Parallel()
	// first and next want the same lock, so that the one that is executed first has it.
	start := func(t *testing.T, d *redistest.FaultDialer) (s *calls.Sender, b *batches, first, next *one) {
		t.Helper()
		b = new(batches)
		rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = d.Dial, -1 })
		rdb.AddHook(b)
		s = newSender(t, rdb)
		s.Retries = 3
		key, order := redistest.Name(t), new(atomic.Int64)
		first, next = newOne(order, take(key, "first").Build()), newOne(order, take(key, "next").Build())
		first.call.Next = new(calls.Job).For(next)
		return s, b, first, next
	}
	taken := func(t *testing.T, c *one) bool {
		t.Helper()
		<-c.done
		got, err := c.reply.Integers(2)
		require.NoError(t, err)
		require.Equal(t, 1, c.builds)
		return got[0] == 1
	}

	t.Run("is executed behind the first in one round trip, and applied before it", func(t *testing.T) {
		t.Parallel()
		s, b, first, next := start(t, new(redistest.FaultDialer))
		mustTake(t, s, "loads the script")
		s.Submit(calls.Nobody, new(calls.Job), first, first.call.Keys[0])
		require.True(t, taken(t, first))
		require.False(t, taken(t, next))
		require.True(t, first.reply.Followed)
		require.False(t, next.reply.Followed)
		require.Less(t, next.applied, first.applied)
		require.EqualValues(t, 1, b.n.Load())
		require.EqualValues(t, 2, b.largest.Load())
	})

	t.Run("was not executed behind a first one whose script was unknown", func(t *testing.T) {
		t.Parallel()
		s, _, first, next := start(t, new(redistest.FaultDialer))
		first.call.Call = scripts.StringAcquire.Call([]string{"another"}, "first", 60_000)
		mustTake(t, s, "loads the script of the next")
		s.Submit(calls.Nobody, new(calls.Job), first, first.call.Keys[0])
		require.True(t, taken(t, first))
		require.True(t, taken(t, next))
		require.False(t, first.reply.Followed, "the next one came first")
	})

	t.Run("does not follow a first one that is repeated", func(t *testing.T) {
		t.Parallel()
		d := new(redistest.FaultDialer)
		s, _, first, next := start(t, d)
		mustTake(t, s, "loads the script")
		lost := d.LoseReply("evalsha", 1, redistest.Cut)
		s.Submit(calls.Nobody, new(calls.Job), first, first.call.Keys[0])
		<-lost
		require.True(t, taken(t, first))
		require.False(t, taken(t, next))
		require.False(t, first.reply.Followed)
		require.True(t, first.reply.Ambiguous)
	})

	t.Run("has failed, so that it has to be sent again", func(t *testing.T) {
		t.Parallel()
		s, _, first, next := start(t, new(redistest.FaultDialer))
		mustTake(t, s, "loads the script")
		s.Retries = 0
		require.NoError(t, s.Client.Set(t.Context(), "a string", 1, 0).Err())
		next.call.Call = take("a string", "next").Build()
		s.Submit(calls.Nobody, new(calls.Job), first, first.call.Keys[0])
		require.True(t, taken(t, first))
		<-next.done
		require.Error(t, next.reply.Err())
		require.False(t, first.reply.Followed)
	})

	t.Run("may have been given up", func(t *testing.T) {
		t.Parallel()
		s, b, first, next := start(t, new(redistest.FaultDialer))
		mustTake(t, s, "loads the script")
		next.given = true
		s.Submit(calls.Nobody, new(calls.Job), first, first.call.Keys[0])
		require.True(t, taken(t, first))
		require.False(t, first.reply.Followed)
		require.Zero(t, b.n.Load())
	})

	t.Run("goes with the call of a caller who is alone", func(t *testing.T) {
		t.Parallel()
		u := newUser(t)
		u.warm(t)
		order := new(atomic.Int64)
		next := newOne(order, take(u.key+":next", "next").Build())
		redistest.Poll(t, func() bool { // until the caller would send itself
			before := u.sender.Begun()
			for range 2 * calls.SoloAfter {
				<-u.count(t.Context()).reply
			}
			first := newOne(order, take(u.key+":next", "first").Build())
			if u.sender.Begun() > before {
				first.call.Next = new(calls.Job).For(next)
			}
			before = u.sender.Begun()
			u.sender.Submit(t.Context(), new(calls.Job), first, u.key)
			<-first.done
			alone := u.sender.Begun() > before
			if first.call.Next != nil {
				<-next.done
				require.True(t, first.reply.Followed)
				next = newOne(order, next.call.Call)
			}
			return alone && first.call.Next != nil
		})
	})
}
