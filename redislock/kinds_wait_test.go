package redislock_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func onlyOneConnection(o *redis.UniversalOptions) { o.PoolSize, o.MaxActiveConns = 1, 1 }

func isNil(err error) bool { return errors.Is(err, redis.Nil) }

func entersOnUnlock(t *testing.T, s *subject) {
	holder, waiter := s.of(s.client(t)), s.contender(t, s.rivalOf)
	requireWoken(t, func() time.Duration {
		l := mustTry(t, holder)
		waiting := waiter.start(t, within(t, patience))
		mustUnlock(t, l)
		free := time.Now()
		mustUnlock(t, waiting.wait(t))
		return waiting.at.Sub(free)
	})
	s.requireNoTrace(t)
}

func entersOnClose(t *testing.T, s *subject) {
	waiter := s.contender(t, s.rivalOf)
	requireWoken(t, func() time.Duration {
		c := s.client(t)
		mustTry(t, s.of(c))
		waiting := waiter.start(t, within(t, patience))
		require.NoError(t, c.Close(within(t, patience)))
		free := time.Now()
		mustUnlock(t, waiting.wait(t))
		return waiting.at.Sub(free)
	})
	s.requireNoTrace(t)
}

func entersOnForce(t *testing.T, s *subject) {
	c := s.client(t)
	waiter := s.contender(t, s.rivalOf)
	requireWoken(t, func() time.Duration {
		lost := mustTry(t, s.of(c))
		waiting := waiter.start(t, within(t, patience))
		freed, err := s.mutexOf(s.client(t)).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, freed)
		free := time.Now()
		l := waiting.wait(t)
		s.requireHeld(t)
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		s.requireHeld(t)
		mustUnlock(t, l)
		return waiting.at.Sub(free)
	})
}

func entersOnExpiry(t *testing.T, s *subject) {
	m, start := s.of(s.client(t)), time.Now()
	s.holdRaw(t, 800*time.Millisecond)
	l := mustWait(t, m)
	require.GreaterOrEqual(t, time.Since(start), 800*time.Millisecond)
	require.Less(t, time.Since(start), 6*time.Second, "when it ends, or by a poll if the machine is busy")
	mustUnlock(t, l)
	s.requireNoTrace(t)
}

func entersByAPoll(t *testing.T, s *subject) {
	free := s.holdRaw(t, 0) // only a message helps, or a poll
	waiter := s.contender(t, s.of)
	waiting := waiter.start(t, within(t, patience))
	looks := waiter.count.looks()
	free()
	freed := time.Now()
	l := waiting.wait(t)
	require.Less(t, waiter.count.looks(), looks+10, "it does not ask all the time")
	require.Less(t, waiting.at.Sub(freed), 6*time.Second, "the longest interval, and room for a busy machine")
	mustUnlock(t, l)
	s.requireNoTrace(t)
}

func spuriousMessage(t *testing.T, s *subject) {
	held, waiter := s.take(t), s.contender(t, s.rivalOf)
	waiting := waiter.start(t, within(t, patience))
	channel := scripts.RWChannel(s.name)
	switch s.kind {
	case "plain":
		channel = scripts.LockChannel(s.name)
	case "fair":
		channel = scripts.LockChannel(s.name) + ":" + line(t, s.rdb, s.name)[0]
	}
	looks := waiter.count.looks()
	require.NoError(t, s.rdb.Do(t.Context(), s.verb(), channel, "0").Err())
	poll(t, func() bool { return waiter.count.looks() > looks })
	require.False(t, isClosed(waiting.done))
	require.True(t, held.Valid())
	mustUnlock(t, held)
	mustUnlock(t, waiting.wait(t))
}

func givesUp(t *testing.T, s *subject) {
	held := s.take(t)
	holders := s.requireHeld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := s.contender(t, s.rivalOf).start(t, ctx)
	next := s.contender(t, s.rivalOf).start(t, within(t, patience))
	errWhy := errors.New("why")
	start := time.Now()
	cancel(errWhy)
	<-gone.done
	require.Less(t, gone.at.Sub(start), 5*time.Second)
	require.ErrorIs(t, gone.err, context.Canceled)
	require.ErrorIs(t, gone.err, errWhy)
	require.ErrorIs(t, gone.err, redislock.ErrLocked)
	var locked *redislock.LockedError
	require.ErrorAs(t, gone.err, &locked)
	require.Positive(t, locked.TTL)
	require.Equal(t, holders, s.requireHeld(t))

	start = time.Now()
	_, err := s.rivalOf(s.client(t)).Lock(within(t, 300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	require.Less(t, time.Since(start), 5*time.Second)
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, held)
	mustUnlock(t, next.wait(t))
	poll(t, func() bool { return len(s.trace(t)) == 0 })
}

func aHundredGiveUp(t *testing.T, s *subject) {
	held := s.take(t)
	holders := s.requireHeld(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := s.rivalOf(s.client(t))
	results := make(chan error, 100)
	for range cap(results) {
		go func() {
			_, err := m.Lock(ctx)
			results <- err
		}()
	}
	poll(t, func() bool { return len(s.channels(t, s.name)) > 0 })
	cancel()
	for range cap(results) {
		require.ErrorIs(t, <-results, context.Canceled)
	}
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, held)
	poll(t, func() bool { return len(s.trace(t)) == 0 })
	mustUnlock(t, s.take(t))
}

// Every way in which a caller's context can end: at each stage of a call, by brute force. What was taken by a call that failed is
// given back, so that the name is soon free.
func contextEndsAnywhere(t *testing.T, s *subject) {
	m := s.of(s.client(t), redislock.WithLease(time.Minute))
	w := newWheel(t)
	took, gaveUp := 0, 0
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := w.AfterFunc(time.Duration(i%30)*150*time.Microsecond, cancel)
		require.NoError(t, err)
		l, err := m.Lock(ctx)
		if err == nil {
			took++
			require.NoError(t, l.Unlock(ctx))
		} else {
			gaveUp++
			require.ErrorIs(t, err, context.Canceled)
		}
		cancel()
	}
	t.Logf("%d took the lock, %d gave up", took, gaveUp)
	start := time.Now()
	l := mustWait(t, s.rivalOf(s.client(t)))
	require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
	mustUnlock(t, l)
	poll(t, func() bool { return len(s.trace(t)) == 0 })
}

func callsBack(t *testing.T, s *subject) {
	held := s.take(t)
	holders := s.requireHeld(t)
	c := s.client(t)
	m := s.rivalOf(c).(*redislock.Mutex)
	call := func() (<-chan *begun, func()) {
		results := make(chan *begun, 1)
		return results, m.LockFunc(t.Context(), func(l *redislock.Lock, err error) { results <- &begun{lock: l, err: err} })
	}
	granted, tooLate := call()
	given, cancel := call()
	cancel()
	require.ErrorIs(t, (<-given).err, context.Canceled)
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, held)
	b := <-granted
	require.NoError(t, b.err)
	tooLate()
	require.True(t, b.lock.Valid())
	mustUnlock(t, b.lock)
	poll(t, func() bool { return len(s.trace(t)) == 0 })
}

// Many callers of several processes, each of which has one connection to a node, with locks of all kinds.
func TestKinds_ManyCallersOnOneConnection(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p *place) {
		const processes, callers, times, names = 3, 4, 5, 2
		var subjects []*subject
		for _, kind := range exclusive {
			for range names {
				subjects = append(subjects, newSubject(t, p, kind))
			}
		}
		counts := make([]int, len(subjects)) // each guarded by its lock: the race detector is the checker
		var running sync.WaitGroup
		for range processes {
			c := newClient(t, p.connect(t, onlyOneConnection))
			for i, s := range subjects {
				for range callers {
					running.Go(func() {
						for range times {
							if err := s.of(c).Do(within(t, patience), func(context.Context) error { counts[i]++; return nil }); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
		}
		running.Wait()
		for i, s := range subjects {
			require.Equal(t, processes*callers*times, counts[i], s.kind)
			s.requireNoTrace(t)
		}
		for _, s := range subjects { // they linger for a few seconds
			poll(t, func() bool { return len(s.channels(t, s.name)) == 0 })
		}
	})
}

// Processes that share nothing but Redis.
func TestKinds_ExcludeProcesses(t *testing.T) {
	t.Parallel()
	const processes, times = 3, 20
	count := func(t *testing.T, p *place, role, kind string) int {
		name := redistest.Name(t)
		var running sync.WaitGroup
		errs := make([]error, processes)
		for i := range processes {
			cmd := child(t, role, p.options.Addrs, name, times)
			cmd.Env = append(cmd.Env, childKind+"="+kind, childPeers+"="+strconv.Itoa(processes))
			running.Go(func() { errs[i] = cmd.Run() })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		require.ElementsMatch(t, []string{name + counterTail, name + readyTail}, p.keys(t, name))
		n, err := p.rdb.Get(t.Context(), name+counterTail).Int()
		require.NoError(t, err)
		return n
	}
	everywhere(t, func(t *testing.T, p *place) {
		for _, kind := range []string{"plain", "fair", "write"} {
			t.Run(kind+": no update is lost", func(t *testing.T) {
				t.Parallel()
				require.Equal(t, processes*times, count(t, p, roleCount, kind))
			})
		}
		t.Run("read: updates are lost, as readers share it (control)", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, p, roleCount, "read"), processes*times)
		})
		t.Run("without a lock they are lost, too (control)", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, p, roleNoLock, "plain"), processes*times)
		})
	})
}

// A holder that is killed is succeeded when its lease ends, not before.
func TestKinds_AreTakenOverFromAKilledProcess(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, p *place) {
		for _, kinds := range [][2]string{{"plain", "plain"}, {"fair", "fair"}, {"write", "read"}, {"read", "write"}} {
			t.Run(kinds[1]+" after "+kinds[0], func(t *testing.T) {
				t.Parallel()
				s := newSubject(t, p, kinds[1])
				holder := child(t, roleHold, p.options.Addrs, s.name, 0)
				holder.Env = append(holder.Env, childKind+"="+kinds[0])
				stdin, err := holder.StdinPipe()
				require.NoError(t, err)
				defer stdin.Close()
				require.NoError(t, holder.Start())
				poll(t, func() bool { return p.rdb.Exists(t.Context(), s.name).Val() == 1 })
				next := s.contender(t, s.of).start(t, within(t, patience))
				require.NoError(t, holder.Process.Kill())
				require.Error(t, holder.Wait())
				dead := time.Now()
				left := p.rdb.PTTL(t.Context(), s.name).Val()
				require.Positive(t, left)
				l := next.wait(t)
				require.GreaterOrEqual(t, next.at.Sub(dead), left-10*time.Millisecond)
				require.Less(t, next.at.Sub(dead), left+6*time.Second)
				mustUnlock(t, l)
				s.requireNoTrace(t)
			})
		}
	})
}
