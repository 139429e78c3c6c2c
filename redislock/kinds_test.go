package redislock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

var (
	kinds     = []string{"plain", "fair", "read", "write", "multi"}
	exclusive = []string{"plain", "fair", "write", "multi"}
	single    = []string{"plain", "fair", "read", "write"} // of one name
	fenceable = []string{"plain", "fair", "write"}
)

// behaviour is what locks of some kinds do in every place.
type behaviour struct {
	kinds []string
	check func(*testing.T, *subject)
}

var behaviours = map[string]behaviour{
	// kinds_test.go
	"keeps others out and says for how long":       {kinds, keepsOthersOut},
	"of a hundred that try at once one gets it":    {exclusive, oneOfAHundred},
	"of a hundred readers that try at once all do": {[]string{"read"}, allOfAHundred},
	"unlocked twice is ErrNotHeld":                 {kinds, unlockedTwice},
	"unlocked after its end is ErrLost":            {kinds, unlockedAfterItsEnd},
	"entered again by its owner is one hold":       {kinds, enteredAgain},
	"extended lasts longer, never shorter":         {kinds, extended},
	"extended when it is gone is ErrLost":          {kinds, extendedWhenGone},
	"unlocked after its context is free":           {kinds, unlockedAfterItsContext},
	"held for too long ends":                       {kinds, heldForTooLong},
	"ends with its client":                         {kinds, endsWithItsClient},
	"leaves keys of another type alone":            {kinds, leavesOtherTypesAlone},
	"shows its state":                              {single, showsItsState},
	"nested needs no second connection":            {kinds, nestedOnOneConnection},
	// api_test.go
	"frees the holder that was seen": {single, freesTheHolderThatWasSeen},
	// kinds_token_test.go
	"tokens rise":                                 {fenceable, tokensRise},
	"tokens rise from caller to caller":           {fenceable, tokensRiseFromCallerToCaller},
	"a counter of tokens that is none is refused": {fenceable, refusesAFenceThatIsNoNumber},
	"without fencing there is no token":           {single, noTokenWithoutFencing},
	// kinds_wait_test.go
	"a waiter enters when the holder unlocks":         {kinds, entersOnUnlock},
	"a waiter enters when the holder's client closes": {kinds, entersOnClose},
	"a waiter enters when the lock is forced":         {single, entersOnForce},
	"a waiter enters when the lease ends":             {kinds, entersOnExpiry},
	"a waiter enters although the message was lost":   {kinds, entersByAPoll},
	"a message without a release lets nobody in":      {single, spuriousMessage},
	"one that gives up leaves nothing behind":         {kinds, givesUp},
	"a hundred that give up return and leave nothing": {kinds, aHundredGiveUp},
	"a context that ends at any point leaves nothing": {kinds, contextEndsAnywhere},
	"calls back when it is granted":                   {single, callsBack},
	// kinds_loss_test.go
	"is renewed while others try":                   {kinds, isRenewed},
	"renewal mends what others did to the expiry":   {kinds, mendsTheExpiry},
	"tells its holder when the key was removed":     {kinds, tellsOfARemovedKey},
	"tells its holder when the key was overwritten": {kinds, tellsOfAnOverwrittenKey},
	"tells its holder when it was forced":           {kinds, tellsOfForce},
	"a lost reply costs nothing":                    {kinds, lostReplies},
	"given up on the wire leaves nothing behind":    {kinds, givenUpOnTheWire},
	// kinds_java_test.go
	"Java's unlock wakes those who wait here": {single, isWokenByJava},
	"an unlock here wakes Java":               {single, wakesJava},
	"a lease of Java's that ends lets in":     {single, outlivesJava},
	"a lease here that ends lets Java in":     {single, isOutlivedByJava},
	"a lock that Java renews is waited for":   {single, waitsWhileJavaRenews},
}

func TestKinds(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, p *place) {
		for what, b := range behaviours {
			for _, kind := range b.kinds {
				t.Run(kind+": "+what, func(t *testing.T) {
					t.Parallel()
					b.check(t, newSubject(t, p, kind))
				})
			}
		}
		t.Run("multi: is all or nothing", func(t *testing.T) {
			t.Parallel()
			multiIsAllOrNothing(t, p.rdb)
		})
	}
	everywhere(t, run)
	t.Run("a single server, RESP2", func(t *testing.T) {
		t.Parallel()
		run(t, newPlace(t, 2, redistest.Shared(t)))
	})
}

func keepsOthersOut(t *testing.T, s *subject) {
	c := s.client(t)
	l := mustTry(t, s.of(c, redislock.WithLease(20*time.Second)))
	require.True(t, l.Valid())
	holders, trace := s.requireHeld(t), s.trace(t)
	for _, other := range []*redislock.Client{c, s.client(t)} {
		_, err := s.rivalOf(other).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Contains(t, s.parts, locked.Name)
		require.Greater(t, locked.TTL, 5*time.Second)
		require.LessOrEqual(t, locked.TTL, 20*time.Second)
		require.Equal(t, holders, s.requireHeld(t))
		require.ElementsMatch(t, trace, s.trace(t), "who only tries leaves nothing behind")
	}
	mustUnlock(t, l)
	require.False(t, l.Valid())
	s.requireNoTrace(t)
	mustUnlock(t, mustTry(t, s.rivalOf(s.client(t))))
	s.requireNoTrace(t)
}

// tryAtOnce has a hundred callers try at the same time.
func tryAtOnce(t *testing.T, s *subject) (got, refused int64) {
	t.Helper()
	var taken, locked atomic.Int64
	var running sync.WaitGroup
	for _, m := range []locker{s.of(s.client(t)), s.of(s.client(t))} {
		for range 50 {
			running.Go(func() {
				switch _, err := m.TryLock(t.Context()); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, redislock.ErrLocked):
					locked.Add(1)
				default:
					t.Error(err)
				}
			})
		}
	}
	running.Wait()
	return taken.Load(), locked.Load()
}

func oneOfAHundred(t *testing.T, s *subject) {
	got, refused := tryAtOnce(t, s)
	if s.kind == "multi" { // who has the first part may meet one who tries it in passing, never two of them
		require.LessOrEqual(t, got, int64(1))
		require.Equal(t, int64(100), got+refused)
		return
	}
	require.Equal(t, int64(1), got)
	require.Equal(t, int64(99), refused)
	s.requireHeld(t)
}

func allOfAHundred(t *testing.T, s *subject) {
	got, _ := tryAtOnce(t, s)
	require.Equal(t, int64(100), got)
	require.Equal(t, int64(101), s.rdb.HLen(t.Context(), s.name).Val())
}

func unlockedTwice(t *testing.T, s *subject) {
	l := s.take(t)
	mustUnlock(t, l)
	other := s.take(t)
	holders := s.requireHeld(t)
	for range 2 {
		err := l.Unlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrNotHeld)
		require.NotErrorIs(t, err, redislock.ErrLost)
	}
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, other)
	s.requireNoTrace(t)
}

func unlockedAfterItsEnd(t *testing.T, s *subject) {
	l := s.take(t, redislock.WithLease(300*time.Millisecond), redislock.WithoutRenewal())
	other := mustWait(t, s.rivalOf(s.client(t)))
	require.True(t, isClosed(l.Done()), "told before another could have it")
	require.False(t, l.Valid())
	holders := s.requireHeld(t)
	for range 2 {
		err := l.Unlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLost)
		require.NotErrorIs(t, err, redislock.ErrNotHeld)
	}
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrLost)
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, other)
	s.requireNoTrace(t)
}

func enteredAgain(t *testing.T, s *subject) {
	c := s.client(t)
	m := s.of(c, redislock.WithLease(10*time.Second), redislock.WithoutRenewal())
	ctx := redislock.WithOwner(within(t, patience), &redislock.Owner{})
	first, err := m.Lock(ctx)
	require.NoError(t, err)
	holders := s.requireHeld(t)
	again, err := m.Lock(ctx)
	require.NoError(t, err)
	tried, err := m.TryLock(ctx)
	require.NoError(t, err)
	require.Equal(t, holders, s.requireHeld(t))
	for _, other := range []context.Context{t.Context(), redislock.WithOwner(t.Context(), &redislock.Owner{})} {
		_, err = s.rivalOf(c).TryLock(other)
		require.ErrorIs(t, err, redislock.ErrLocked)
	}
	mustUnlock(t, tried, again)
	require.True(t, first.Valid())
	require.Equal(t, holders, s.requireHeld(t))
	require.LessOrEqual(t, s.rdb.PTTL(t.Context(), s.parts[0]).Val(), 10*time.Second, "the lease is as it was")
	mustUnlock(t, first)
	s.requireNoTrace(t)
	require.ErrorIs(t, first.Unlock(ctx), redislock.ErrNotHeld)

	lost, err := s.of(c, redislock.WithLease(time.Second)).Lock(ctx)
	require.NoError(t, err)
	s.vanish(t)
	<-lost.Done()
	_, err = m.Lock(ctx)
	require.ErrorIs(t, err, redislock.ErrLost)
	require.ErrorIs(t, lost.Unlock(ctx), redislock.ErrLost)
	next, err := m.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, next)
}

func extended(t *testing.T, s *subject) {
	l := s.take(t, redislock.WithLease(20*time.Second), redislock.WithoutRenewal())
	before := l.Deadline()
	require.NoError(t, l.Extend(t.Context(), time.Minute))
	require.Greater(t, l.Deadline().Sub(before), 30*time.Second)
	long := l.Deadline()
	require.NoError(t, l.Extend(t.Context(), time.Millisecond))
	require.Equal(t, long, l.Deadline())
	for _, name := range s.parts {
		require.Greater(t, s.rdb.PTTL(t.Context(), name).Val(), 40*time.Second)
		require.LessOrEqual(t, s.rdb.PTTL(t.Context(), name).Val(), time.Minute)
	}
	mustUnlock(t, l)
	s.requireNoTrace(t)
}

func extendedWhenGone(t *testing.T, s *subject) {
	l := s.take(t)
	s.vanish(t)
	other := mustTry(t, s.rivalOf(s.client(t)))
	holders := s.requireHeld(t)
	require.NoError(t, l.Err(), "nobody has noticed yet")
	require.ErrorIs(t, l.Extend(t.Context(), time.Hour), redislock.ErrLost)
	require.False(t, l.Valid())
	<-l.Done()
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	require.Equal(t, holders, s.requireHeld(t))
	require.LessOrEqual(t, s.rdb.PTTL(t.Context(), s.parts[0]).Val(), redislock.DefaultLease, "another's lease is left alone")
	mustUnlock(t, other)
}

func unlockedAfterItsContext(t *testing.T, s *subject) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := s.of(s.client(t)).Lock(ctx)
	require.NoError(t, err)
	cancel()
	require.True(t, l.Valid(), "the context bounds the wait only")
	s.requireHeld(t)
	require.NoError(t, l.Unlock(ctx))
	s.requireNoTrace(t)
}

func heldForTooLong(t *testing.T, s *subject) {
	const most = 500 * time.Millisecond
	start := time.Now()
	l := s.take(t, redislock.WithMaxHold(most), redislock.WithLease(2*time.Second))
	other := mustWait(t, s.rivalOf(s.client(t)))
	require.GreaterOrEqual(t, time.Since(start), most)
	require.True(t, isClosed(l.Done()), "told before another could have it")
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrMaxHold)
	s.requireHeld(t)
	mustUnlock(t, other)
	s.requireNoTrace(t)
}

func endsWithItsClient(t *testing.T, s *subject) {
	c := s.client(t)
	l := mustTry(t, s.of(c))
	ctx := l.Context(t.Context())
	waiting := begin(func() (*redislock.Lock, error) { return s.rivalOf(c).Lock(within(t, patience)) })
	require.NoError(t, c.Close(within(t, patience)))
	<-waiting.done
	require.ErrorIs(t, waiting.err, redislock.ErrClosed)
	s.requireNoTrace(t)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrClosed)
	other := s.take(t)
	holders := s.requireHeld(t)
	require.ErrorIs(t, l.Err(), redislock.ErrClosed)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrClosed)
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrClosed)
	for _, lock := range []func(context.Context) (*redislock.Lock, error){s.of(c).Lock, s.of(c).TryLock} {
		_, err := lock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
	}
	_, err := s.mutexOf(c).State(t.Context())
	require.ErrorIs(t, err, redislock.ErrClosed)
	_, err = s.mutexOf(c).ForceUnlock(t.Context())
	require.ErrorIs(t, err, redislock.ErrClosed)
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, other)
}

func leavesOtherTypesAlone(t *testing.T, s *subject) {
	c, name := s.client(t), s.parts[len(s.parts)-1]
	stranger := []any{"mode", "write", "java:1:write", 1}
	if s.kind == "read" || s.kind == "write" {
		stranger = []any{"java:1", 1}
	}
	for what, spoil := range map[string]func() error{
		"a string":             func() error { return s.rdb.Set(t.Context(), name, "x", 0).Err() },
		"a list":               func() error { return s.rdb.LPush(t.Context(), name, "x").Err() },
		"another kind of lock": func() error { return s.rdb.HSet(t.Context(), name, stranger...).Err() },
	} {
		require.NoError(t, spoil(), what)
		before := s.rdb.Dump(t.Context(), name).Val()
		for _, lock := range []func(context.Context) (*redislock.Lock, error){s.of(c).TryLock, s.of(c).Lock} {
			_, err := lock(within(t, patience))
			require.ErrorIs(t, err, redislock.ErrWrongKind, what)
			require.NotErrorIs(t, err, redislock.ErrLocked, what)
		}
		_, err := s.mutexOf(c).ForceUnlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, what)
		require.Equal(t, before, s.rdb.Dump(t.Context(), name).Val(), what)
		require.NoError(t, s.rdb.Del(t.Context(), name).Err())
		s.requireNoTrace(t)
	}
}

func showsItsState(t *testing.T, s *subject) {
	state := func() redislock.State {
		st, err := s.mutexOf(s.client(t)).State(t.Context())
		require.NoError(t, err)
		return st
	}
	require.Equal(t, redislock.State{}, state())
	l := s.take(t, redislock.WithFencing(), redislock.WithMetadata("a host: job {7}"))
	st := state()
	require.True(t, st.Locked)
	require.Equal(t, []redislock.Holder{{ID: s.requireHeld(t)[0], Metadata: "a host: job {7}"}}, st.Holders)
	require.Equal(t, l.Token(), st.Token)
	require.Greater(t, st.TTL, redislock.DefaultLease-patience/2)
	require.LessOrEqual(t, st.TTL, redislock.DefaultLease)
	if s.kind == "read" {
		second := s.take(t)
		require.Len(t, state().Holders, 2)
		mustUnlock(t, second)
	}
	mustUnlock(t, l)
	require.Equal(t, redislock.State{Token: l.Token()}, state())
	s.holdRaw(t, 0)
	st = state()
	require.Len(t, st.Holders, 1)
	require.Empty(t, st.Holders[0].Metadata)
	require.Negative(t, st.TTL, "without expiry")
}

func nestedOnOneConnection(t *testing.T, s *subject) {
	rdb := s.connect(t, onlyOneConnection)
	c := newClient(t, rdb)
	inner := &subject{s.place, s.kind, "{" + s.name + "}inner", []string{"{" + s.name + "}1", "{" + s.name + "}2"}}
	err := s.of(c).Do(within(t, patience), func(ctx context.Context) error {
		return inner.of(c).Do(ctx, func(ctx context.Context) error { return rdb.Get(ctx, s.name+":x").Err() })
	})
	require.True(t, isNil(err), "%v", err)
	s.requireNoTrace(t)
}
