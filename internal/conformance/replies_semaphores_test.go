package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// FuzzReplies_Semaphores answers the calls of semaphore with arbitrary replies.
func FuzzReplies_Semaphores(f *testing.F) {
	open := func(rdb redis.UniversalClient, w *wheel.Wheel) (*semaphore.Client, error) {
		return semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithLogger(slog.New(slog.DiscardHandler)))
	}
	ctx := context.Background()
	type call = func(c *semaphore.Client, next func()) (bool, error)
	plain := func(use func(s *semaphore.Semaphore) (bool, error)) call {
		return func(c *semaphore.Client, _ func()) (bool, error) { return use(c.Semaphore("s", 0)) }
	}
	counting := func(use func(s *semaphore.CountingSemaphore) (bool, error)) call {
		return func(c *semaphore.Client, _ func()) (bool, error) { return use(c.CountingSemaphore("s")) }
	}
	const (
		anID = "000102030405060708090a0b0c0d0e0f"
		took = "( 1 1 0 -1 5 )"
	)
	held := func(use func(g *semaphore.Grant) (bool, error)) call {
		return func(c *semaphore.Client, next func()) (bool, error) {
			g, err := c.Semaphore("s", 0).TryAcquire(ctx, 2)
			if err != nil {
				return false, err
			}
			next()
			return use(g)
		}
	}
	acquired := func(r reply) (ok, grants bool) {
		ok = r.list && len(r.n) == 5 && flag(r.n[0]) && r.n[2] >= 0 && r.n[3] >= -1 && r.n[4] >= 0
		return ok, ok && r.n[4] > 0
	}
	taken := func(r reply) (ok, grants bool) {
		ok = r.list && len(r.n) == 4 && flag(r.n[0]) && flag(r.n[1]) && r.n[3] >= -1
		return ok, ok && r.n[0] == 1
	}
	// Without a maximum, permits are added whether the semaphore exists or not.
	added := func(r reply) (ok, grants bool) {
		ok, grants = flags(1)(r)
		return ok && grants, true
	}

	fuzzReplies(f, open, []replyCall[*semaphore.Client]{
		{"Semaphore.TryAcquire", "", plain(func(s *semaphore.Semaphore) (bool, error) { return got(s.TryAcquire(ctx, 2)) }), means(acquired)},
		{"Semaphore.ReleaseIDs", "", plain(func(s *semaphore.Semaphore) (bool, error) { return done(s.ReleaseIDs(ctx, anID)) }), means(flags(1))},
		{"Semaphore.UpdateLease", "", plain(func(s *semaphore.Semaphore) (bool, error) {
			return done(s.UpdateLease(ctx, anID, time.Minute))
		}), means(flags(1))},
		{"Semaphore.Available", "", plain(func(s *semaphore.Semaphore) (bool, error) {
			return false, second(s.Available(ctx))
		}), consistent},
		{"Semaphore.TrySetPermits", "", plain(func(s *semaphore.Semaphore) (bool, error) { return s.TrySetPermits(ctx, 3) }), means(oneFlag)},
		{"Semaphore.Delete", "", plain(func(s *semaphore.Semaphore) (bool, error) { return s.Delete(ctx) }), means(oneFlag)},
		{"Semaphore.State", "", plain(func(s *semaphore.Semaphore) (bool, error) {
			state, err := s.State(ctx)
			for _, p := range state.Permits {
				if p.Lease < 0 && p.Lease != semaphore.Forever {
					return true, errors.New("a lease of " + p.Lease.String())
				}
			}
			return false, err
		}), consistent},
		{"Grant.Extend", took, held(func(g *semaphore.Grant) (bool, error) {
			before := g.Deadline()
			err := g.Extend(ctx, time.Hour)
			return g.Deadline().After(before), err
		}), means(flags(2))},
		{"Grant.Release", took, held(func(g *semaphore.Grant) (bool, error) { return done(g.Release(ctx)) }), means(flags(2))},
		{"FairSemaphore.TryAcquire", "", func(c *semaphore.Client, _ func()) (bool, error) {
			return got(c.FairSemaphore("s", 0).TryAcquire(ctx, 2))
		}, means(acquired)},
		{"CountingSemaphore.TryAcquire", "", counting(func(s *semaphore.CountingSemaphore) (bool, error) {
			return done(s.TryAcquire(ctx, 2))
		}), means(taken)},
		{"CountingSemaphore.Release", "", counting(func(s *semaphore.CountingSemaphore) (bool, error) {
			return done(s.Release(ctx, 2))
		}), means(added)},
		{"CountingSemaphore.TrySetPermits", "", counting(func(s *semaphore.CountingSemaphore) (bool, error) {
			return s.TrySetPermits(ctx, 2)
		}), means(oneFlag)},
		{"CountingSemaphore.Available", "", counting(func(s *semaphore.CountingSemaphore) (bool, error) {
			return false, second(s.Available(ctx))
		}), consistent},
	},
		"nil", "( )", "( nil )", "1", "0", "( 1 )", "( 0 )", "( 1 1 )", "( 1 0 )", "( 7 )", "( -1 -1 )", "( 1 1 1 )", "( 1 1 0 )",
		"( 1 0 0 -1 5 )", "( 1 0 0 -1 -5 )", "( 1 1 5 9223372036854775807 0 )", "( 1 9223372036854775807 9223372036854775807 3 0 )",
		"( 5 1 3 )", "( ( ) 1 1 0 -1 5 )", "( 1 1 1 -1 )", "( 1 1 1 9223372036854775807 )", "( 1 1 1 -9 )", "( 1 1 1 5 0 'id 9223372036854775807 )",
		"!WRONGTYPE_Operation", "!OOM_no|memory", "!", "~inf", "( ~1.5 )", "true", "inf", "( !NOSCRIPT )", "( 1 ( 1 ) )",
	)
}
