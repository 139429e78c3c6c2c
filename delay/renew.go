package delay

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// renewBackend renews the leases of claimed tasks. The Key of a lease is the name of its queue, its ID "token id". A
// batch is one pipeline with one script per queue.
type renewBackend struct{ client *Client }

// Renew implements renewal.Backend.
func (b renewBackend) Renew(ctx context.Context, batch *renewal.Batch) error {
	ended := make([]bool, len(batch.Leases))
	start := func(name string) scripts.Call {
		return scripts.DelayRenew.Call([]string{scripts.DelayKey(name, "running"), scripts.DelayKey(name, "attempts")})
	}
	add := func(args []any, i int) []any {
		l := batch.Leases[i]
		token, id, _ := strings.Cut(l.ID, " ")
		lease := micros(l.TTL)
		waits, over := b.client.phase(l.Key, l.ID)
		if ended[i] = over; waits {
			lease += ".5"
		}
		return append(args, id, token, lease)
	}
	read := func(reply *redis.Cmd, attempts []int) error {
		renewed, err := scripts.Flags(reply, len(attempts))
		if err != nil {
			return fmt.Errorf("delay: renew: %w", err)
		}
		for k, i := range attempts {
			batch.Outcomes[i] = renewal.OutcomeGone
			if renewed[k] || ended[i] { // if the end has just been recorded, no lease is lost
				batch.Outcomes[i] = renewal.OutcomeExtended
			}
		}
		return nil
	}
	return hold.RenewByKey(ctx, b.client.redis.Dedicated, batch, start, add, read)
}

// phase reports whether an attempt has not begun, and whether it has ended. key and id are those of its lease.
func (c *Client) phase(key, id string) (waits, ended bool) {
	c.mu.Lock()
	s := c.serving[key]
	c.mu.Unlock()
	if s == nil {
		return false, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.claimed[id]; a != nil {
		return a.began.IsZero(), a.ended
	}
	return false, false
}
