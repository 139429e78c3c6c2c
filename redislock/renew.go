package redislock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// renewBackend renews the locks of one kind. On one server a batch is one script for all keys. In a cluster,
// and behind a proxy of one, it is a pipeline of one script per key.
type renewBackend struct {
	kind      *kind
	dedicated *redisconn.Dedicated
	separate  atomic.Bool
}

func newRenewBackend(k *kind, c *Client) *renewBackend {
	b := &renewBackend{kind: k, dedicated: c.dedicated}
	b.separate.Store(b.dedicated.Single() == nil)
	return b
}

// Renew implements renewal.Backend.
func (b *renewBackend) Renew(ctx context.Context, batch *renewal.Batch) error {
	b.dedicated.Follow(ctx, batch.Leases[0].TTL)
	if b.separate.Load() {
		return b.renewSeparately(ctx, batch)
	}
	keys := make([]string, 0, len(batch.Leases))
	args := make([]any, 0, 2*len(batch.Leases))
	var ttl time.Duration
	var millis any // of ttl: most leases of a batch have the same
	for _, l := range batch.Leases {
		if l.TTL != ttl {
			ttl, millis = l.TTL, redisconn.Millis(l.TTL)
		}
		keys = b.kind.appendKeysToRenew(keys, l.Key, l.ID)
		args = append(args, l.ID, millis)
	}
	cmd := b.kind.renew.Run(ctx, b.dedicated.Single(), keys, args...)
	if redis.HasErrorPrefix(cmd.Err(), "CROSSSLOT") {
		b.separate.Store(true)
		return b.renewSeparately(ctx, batch)
	}
	return outcomes(cmd, batch.Outcomes)
}

func (b *renewBackend) renewSeparately(ctx context.Context, batch *renewal.Batch) (err error) {
	renewals := make([]scripts.Call, len(batch.Leases))
	for i, l := range batch.Leases {
		renewals[i] = b.kind.renew.Call(b.kind.keysToRenew(l.Key, l.ID), l.ID, redisconn.Millis(l.TTL))
	}
	for i, cmd := range b.dedicated.RunBatch(ctx, renewals) {
		if failure := outcomes(cmd, batch.Outcomes[i:i+1]); failure != nil {
			err = failure
			if !redisconn.Refused(failure) {
				b.dedicated.Reload()
			}
		}
	}
	return err
}

// outcomes reads the reply for len(into) leases.
func outcomes(cmd *redis.Cmd, into []renewal.Outcome) error {
	held, err := scripts.Flags(cmd, len(into))
	if err != nil {
		return fmt.Errorf("redislock: renew: %w", err)
	}
	for i, h := range held {
		into[i] = renewal.Gone
		if h {
			into[i] = renewal.Extended
		}
	}
	return nil
}
