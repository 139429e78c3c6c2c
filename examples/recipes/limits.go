package recipes

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Login checks a password unless 5 passwords an hour of the key, such as an account or an address, were wrong. An
// attempt reserves one permit of 40 an hour. A wrong password costs 8 of them, a right one none; of more than 16 right
// ones that end at the same time, a few may cost one.
func Login(
	ctx context.Context, logins *ratelimit.Limiter, key string, check func(context.Context) (right bool, err error),
) (right bool, err error) {
	r, err := logins.TryReserve(ctx, key, 1)
	if err != nil {
		return false, err
	}
	if !r.Allowed {
		return false, fmt.Errorf("too many wrong passwords: try again in %v", r.RetryAfter)
	}
	right, err = check(ctx)
	cost := int64(0)
	if !right && err == nil {
		cost = 8
	}
	if failed := r.Reservation.Settle(context.WithoutCancel(ctx), cost); failed != nil {
		log.Printf("an attempt of %s was not counted as it should be: %v", key, failed)
	}
	return right, err
}

// AllowOrBlock allows 5 requests a minute, and blocks a key that asks for more for 15 minutes. The sixth request is
// denied, and takes one permit of 6 in 15 minutes: the window becomes that long, and no permit is left in it.
func AllowOrBlock(ctx context.Context, attempts *ratelimit.Limiter, key string) (ratelimit.Result, error) {
	r, err := attempts.Allow(ctx, key)
	if err != nil || r.Allowed {
		return r, err
	}
	block, err := attempts.With(ratelimit.Per(6, 15*time.Minute)).Allow(ctx, key)
	r.RetryAfter = max(r.RetryAfter, block.ResetAfter)
	return r, err
}

// WaitAndTell waits for a permit. It calls tell with the time that is left, at once and then every second.
func WaitAndTell(
	ctx context.Context, w *wheel.Wheel, exports *ratelimit.Limiter, key string, tell func(left time.Duration),
) error {
	place, err := exports.Reserve(ctx, key, 1)
	if err != nil {
		return err
	}
	tell(place.Delay())
	ticks, err := w.Every(time.Second, func() { tell(place.Delay()) })
	if err != nil {
		return err
	}
	defer ticks.Stop()
	if err := place.Wait(ctx); err != nil {
		_, failed := place.Cancel(context.WithoutCancel(ctx))
		return errors.Join(err, failed)
	}
	return nil
}

// Daily limits each key by the days of the calendar. Quota has windows that are longer than the longest day.
type Daily struct {
	Quota *ratelimit.Limiter
	Now   func() time.Time // in the time zone whose days count
}

// AllowN implements httplimit.Limiter.
func (d Daily) AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error) {
	now := d.Now()
	r, err := d.Quota.AllowN(ctx, now.Format(time.DateOnly)+" "+key, n)
	midnight := time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, now.Location())
	r.ResetAfter = min(r.ResetAfter, midnight.Sub(now))
	if !r.Allowed {
		r.RetryAfter = midnight.Sub(now)
	}
	return r, err
}

// Limit implements httplimit.Limiter.
func (d Daily) Limit() ratelimit.Limit { return d.Quota.Limit() }
