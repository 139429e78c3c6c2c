package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// FuzzReplies_Locks answers the calls of redislock with arbitrary replies.
// Guarantees: L48.
func FuzzReplies_Locks(f *testing.F) {
	open := func(rdb redis.UniversalClient, w *wheel.Wheel) (*redislock.Client, error) {
		return redislock.New(rdb, redislock.WithWheel(w), redislock.WithLogger(slog.New(slog.DiscardHandler)))
	}
	ctx := context.Background()
	type call = func(c *redislock.Client, next func()) (bool, error)
	type mutex = func(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex
	try := func(of mutex, opts ...redislock.LockOption) call {
		return func(c *redislock.Client, _ func()) (bool, error) { return got(of(c, opts...).TryLock(ctx)) }
	}
	const took = "( 1 '30000 )"
	held := func(use func(l *redislock.Lock) (bool, error)) call {
		return func(c *redislock.Client, next func()) (bool, error) {
			l, err := c.Mutex("m").TryLock(ctx)
			if err != nil {
				return false, err
			}
			next()
			return use(l)
		}
	}
	unfenced := func(r reply) (ok, grants bool) {
		ok = r.list && len(r.n) == 2 && flag(r.n[0])
		return ok, ok && r.n[0] == 1
	}
	// A fenced lock has a token, and a few tokens after it may be reserved.
	fenced := func(r reply) (ok, grants bool) {
		switch {
		case r.list && len(r.n) == 2:
			return r.n[0] == 0, false
		case r.list && len(r.n) == 4:
			ok = r.n[0] == 1 && r.n[2] > 0 && r.n[3] >= 0 && r.n[3] <= 10000 && r.n[2]+r.n[3] > 0
			return ok, ok
		}
		return false, false
	}
	// The ids of the holds that were freed are texts.
	forced := func(r reply) (ok, grants bool) {
		all, _ := r.raw.([]any)
		if len(all) == 0 {
			return false, false
		}
		freed, ok := all[0].(int64)
		ok = ok && (freed == 1 || freed == 0 && len(all) == 1)
		for _, id := range all[1:] {
			_, isText := id.(string)
			ok = ok && isText
		}
		return ok, ok && freed == 1
	}

	fuzzReplies(f, open, []replyCall[*redislock.Client]{
		{"Mutex.TryLock", "", try(plainMutex), means(unfenced)},
		{"Mutex.TryLock, fenced", "", func(c *redislock.Client, _ func()) (bool, error) {
			l, err := c.Mutex("m", redislock.WithFencing()).TryLock(ctx)
			if l != nil && l.Token() <= 0 {
				err = errors.New("a fenced lock without a token")
			}
			return l != nil, err
		}, means(fenced)},
		{"FairMutex.TryLock", "", try(fairMutex), means(unfenced)},
		{"RWMutex.TryRLock", "", try(readMutex, redislock.WithFencing()), means(unfenced)},
		{"RWMutex.TryLock", "", try(writeMutex), means(unfenced)},
		{"Lock.Unlock", took, held(func(l *redislock.Lock) (bool, error) { return done(l.Unlock(ctx)) }), means(oneFlag)},
		{"Lock.Extend", took, held(func(l *redislock.Lock) (bool, error) {
			before := l.Deadline()
			err := l.Extend(ctx, time.Hour)
			return l.Deadline().After(before), err
		}), means(flags(1))},
		{"a renewal", took, held(func(l *redislock.Lock) (bool, error) {
			before := l.Deadline()
			time.Sleep(15 * time.Second)
			return l.Deadline().After(before) && l.Err() == nil, nil
		}), func(r reply, granted bool, _ error) error {
			if _, grants := flags(1)(r); granted != grants {
				return errors.New("does not mean what the script says")
			}
			return nil
		}},
		{"RWMutex.Downgrade", took, func(c *redislock.Client, next func()) (bool, error) {
			rw := c.RWMutex("m")
			l, err := rw.TryLock(ctx)
			if err != nil {
				return false, err
			}
			next()
			return got(rw.Downgrade(ctx, l))
		}, means(unfenced)},
		{"Mutex.ForceUnlock", "", func(c *redislock.Client, _ func()) (bool, error) {
			return c.Mutex("m").ForceUnlock(ctx)
		}, means(forced)},
		{"FairMutex.ForceUnlockHolder", "", func(c *redislock.Client, _ func()) (bool, error) {
			return c.FairMutex("m").ForceUnlockHolder(ctx, "id")
		}, means(oneFlag)},
		{"FairMutex.State", "", func(c *redislock.Client, _ func()) (bool, error) {
			s, err := c.FairMutex("m").State(ctx)
			return s.Locked, err
		}, consistent},
	},
		"nil", "( )", "( nil )", "1", "0", "7", "-1", "( 1 )", "( 0 )", "( 1 1 )", "( 7 )", "( 1 30000 )", "( 0 -1 )", "( 0 30000 )",
		"( 1 30000 5 )", "( 1 30000 5 0 )", "( 1 30000 5 0 0 )", "( 1 30000 0 0 )", "( 1 30000 -5 3 )", "( 1 30000 5 -3 )",
		"( 0 9223372036854775807 )", "( 0 -9223372036854775808 )", "( 1 1 9223372036854775807 9000 )", "( 1 1 5 4294967297 )", "( 2 30000 )",
		"!WRONGTYPE_Operation", "!WRONGKIND_of|lock", "!OOM_no|memory", "!", "~inf", "( ~1.0 ~2.5 )", "true", "inf", "( !NOSCRIPT 1 )", "( 1 ( 1 ) )",
		"( 1 'a:1 'b:2 )", "( 1 'a:1 2 )", "( 0 'a:1 )", "( '1 )", "( 1 nil )", "( 2 'a:1 )", "( 2 'a:1:s0 )",
	)
}
