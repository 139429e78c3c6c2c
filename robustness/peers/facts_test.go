package peers_test

import (
	"context"
	"os/exec"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// What the documentation says of peers, one test each.

// long is a lease that no stall outlasts.
const long = time.Minute

// locks returns a Client on the shared server, its client of Redis, and a name.
func locks(t *testing.T) (*redislock.Client, *redis.Client, string) {
	rdb := redistest.Shared(t).Client(t)
	c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)),
		redislock.WithLockDefaults(redislock.WithStringKey(), redislock.WithLease(long)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c, rdb, redistest.Name(t)
}

func lock(t *testing.T, m *redislock.Mutex) *redislock.Lock {
	t.Helper()
	l, err := m.Lock(redistest.Within(t, redistest.Patience))
	require.NoError(t, err)
	return l
}

// A release of a hold that has ended, without comparison, frees the lock of the next holder: the claims overlap. With
// the comparison they do not.
func TestRelease_WithoutComparison(t *testing.T) {
	t.Parallel()
	for library, found := range map[string]int{carelessLib: 1, redisPyLib: 0, bsmLib: 0, redsyncLib: 0} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			c, rdb, name := locks(t)
			ctx := redistest.Within(t, redistest.Patience)
			peer, closing, err := newLibrary(library, rdb, func() time.Duration { return time.Millisecond })
			require.NoError(t, err)
			redistest.CloseWith(t, closing)
			late, err := peer.lock(ctx, name, 50*time.Millisecond, false)
			require.NoError(t, err)
			began := now()
			ours := lock(t, c.Mutex(name)) // waits for the end of that lease
			claims := []claim{
				{name, library, began, late.until()},
				{name, cogwheelLib, now(), fromNow(now(), ours.Deadline())},
			}
			_, err = late.release(ctx)
			require.NoError(t, err)
			if third, err := bsm.Obtain(ctx, rdb, name, long, nil); err == nil {
				claims = append(claims, claim{name, bsmLib, now(), now().add(long)})
				require.NoError(t, third.Release(ctx))
			} else {
				require.ErrorIs(t, err, bsm.ErrNotObtained)
			}
			require.Len(t, overlaps(claims), found)
			require.Equal(t, found == 0, ours.Unlock(ctx) == nil)
		})
	}
}

// redsync with WithSetNXOnExtend takes a lock that it has lost, although another has held it since. It does not take it
// from a holder, and without the option it is told of the loss.
func TestRedsync_ExtendRevivesAnExpiredHold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		opts    []redsync.Option
		held    bool // by this library at the time of Extend
		revived bool
	}{
		{"with the option", []redsync.Option{redsync.WithSetNXOnExtend()}, false, true},
		{"with the option, of a held lock", []redsync.Option{redsync.WithSetNXOnExtend()}, true, false},
		{"without the option", nil, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			locks, rdb, name := locks(t)
			ctx := redistest.Within(t, redistest.Patience)
			theirs := redsync.New(goredis.NewPool(rdb)).NewMutex(name, append(c.opts, redsync.WithExpiry(long))...)
			require.NoError(t, theirs.LockContext(ctx))
			require.NoError(t, rdb.PExpire(ctx, name, time.Millisecond).Err())
			ours := lock(t, locks.Mutex(name))
			if !c.held {
				require.NoError(t, ours.Unlock(ctx))
			}
			extended, err := theirs.ExtendContext(ctx)
			require.Equal(t, c.revived, extended, err)
			if c.held {
				require.NoError(t, ours.Unlock(ctx), "the hold is as it was")
			}
		})
	}
}

// Obtain of bsm/redislock takes over a value that begins with its own token, which is random unless Options.Token is
// set. It does not take over a hold of this library, unless it is given the beginning of its id as its token.
func TestBSM_ObtainTakesNoHoldOver(t *testing.T) {
	t.Parallel()
	c, rdb, name := locks(t)
	ctx := redistest.Within(t, redistest.Patience)
	l := lock(t, c.Mutex(name))
	id := rdb.Get(ctx, name).Val()
	peer := bsm.New(rdb)
	for _, options := range []*bsm.Options{nil, {Metadata: id}, {Token: "service-1"}} {
		for range 100 {
			_, err := peer.Obtain(ctx, name, long, options)
			require.ErrorIs(t, err, bsm.ErrNotObtained)
		}
	}
	require.Equal(t, id, rdb.Get(ctx, name).Val())

	control, err := peer.Obtain(ctx, name, long, &bsm.Options{Token: id[:8]})
	require.NoError(t, err)
	require.ErrorIs(t, l.Unlock(ctx), redislock.ErrLost)
	require.NoError(t, control.Release(ctx), "its hold is not removed by the Unlock of another")
}

// The value of bsm/redislock is its token and its metadata, with nothing in between: State shows all of it as the ID.
func TestBSM_StateShowsTokenAndMetadataAsOne(t *testing.T) {
	t.Parallel()
	c, rdb, name := locks(t)
	ctx := redistest.Within(t, redistest.Patience)
	theirs, err := bsm.Obtain(ctx, rdb, name, long, &bsm.Options{Metadata: `{"host":"a"}`})
	require.NoError(t, err)
	s, err := c.Mutex(name).State(ctx)
	require.NoError(t, err)
	require.True(t, s.Locked)
	require.Equal(t, []redislock.Holder{{ID: theirs.Token() + `{"host":"a"}`}}, s.Holders)
	require.InDelta(t, long, s.TTL, float64(redistest.Patience))
}

// A lock of several keys that sets them all in one step, as ObtainMulti of bsm/redislock from version 0.10.0 does with
// MSETNX and PEXPIRE, excludes a MultiMutex and a Mutex of these names, and is excluded by each. The module proxy did
// not have that version when this was written: the script is not that of the library.
func TestBSM_SeveralKeysInOneStep(t *testing.T) {
	t.Parallel()
	c, rdb, name := locks(t)
	ctx := redistest.Within(t, redistest.Patience)
	names := []string{"{" + name + "}:a", "{" + name + "}:b"}
	obtain := redis.NewScript(`
if redis.call('MSETNX', KEYS[1], ARGV[1], KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1`)
	obtained := func() bool {
		ok, err := obtain.Run(ctx, rdb, names, "bsm's token", long.Milliseconds()).Bool()
		require.NoError(t, err)
		return ok
	}

	both, err := c.MultiMutex(names).Lock(ctx)
	require.NoError(t, err)
	require.False(t, obtained())
	require.NoError(t, both.Unlock(ctx))
	one := lock(t, c.Mutex(names[1]))
	require.False(t, obtained())
	require.Zero(t, rdb.Exists(ctx, names[0]).Val(), "none is taken alone")
	require.NoError(t, one.Unlock(ctx))

	require.True(t, obtained())
	_, err = c.MultiMutex(names).TryLock(ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	_, err = c.Mutex(names[0]).TryLock(ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
}

// extend of node-redlock sets the lease from now on, also to a shorter one.
func TestNodeRedlock_ExtendShortensItsLease(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	for _, library := range []string{node4Lib, node5Lib} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			needs(t, library)
			c, rdb, name := locks(t)
			ctx := redistest.Within(t, redistest.Patience)
			dir, err := nodeModules()
			require.NoError(t, err)
			cmd := exec.CommandContext(ctx, "node", "shorten.js", library, rdb.Options().Addr, name)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.LessOrEqual(t, rdb.PTTL(ctx, name).Val(), time.Second)
			l := lock(t, c.Mutex(name))
			require.NoError(t, l.Unlock(ctx))
		})
	}
}

// The Lock of redis-py has no expiry without a timeout: it is held until its holder releases it, or by force.
func TestRedisPy_WithoutATimeoutIsHeldForEver(t *testing.T) {
	t.Parallel()
	c, rdb, name := locks(t)
	ctx := redistest.Within(t, redistest.Patience)
	require.NoError(t, rdb.SetArgs(ctx, name, "2c2e5a1c0f7311ee8f2f0242ac120002", redis.SetArgs{Mode: "NX"}).Err())
	m := c.Mutex(name)
	s, err := m.State(ctx)
	require.NoError(t, err)
	require.Negative(t, s.TTL)
	granted := make(chan error, 1)
	cancel := m.LockFunc(context.WithoutCancel(ctx), func(_ *redislock.Lock, err error) { granted <- err })
	defer cancel()
	forced, err := c.Mutex(name).ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)
	require.NoError(t, <-granted)
}

// A key of the default format is refused by bsm/redislock with an error of Redis, and is a taken lock to the others.
func TestPeers_RefuseAHash(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	name, ctx := redistest.Name(t), redistest.Within(t, redistest.Patience)
	l := lock(t, c.Mutex(name))
	_, err = bsm.Obtain(ctx, rdb, name, long, nil)
	require.ErrorContains(t, err, "WRONGTYPE")
	err = redsync.New(goredis.NewPool(rdb)).NewMutex(name).TryLockContext(ctx)
	require.ErrorAs(t, err, new(*redsync.ErrTaken))
	_, err = c.Mutex(name, redislock.WithStringKey()).TryLock(ctx)
	require.ErrorIs(t, err, redislock.ErrWrongKind)
	require.NoError(t, l.Unlock(ctx))
}

// While a peer holds the lock, it is refused to a Mutex without WithStringKey.
func TestMutex_WithoutTheOptionRefusesTheKeyOfAPeer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	name, ctx := redistest.Name(t), redistest.Within(t, redistest.Patience)
	theirs, err := bsm.Obtain(ctx, rdb, name, long, nil)
	require.NoError(t, err)
	_, err = c.Mutex(name).Lock(ctx)
	require.ErrorIs(t, err, redislock.ErrWrongKind)
	require.NoError(t, theirs.Release(ctx))
}
