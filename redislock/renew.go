package redislock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// renewBackend renews the locks of one kind. On one server, one script renews the locks of a batch. In a
// cluster, and where calls share no scripts, a pipeline has one script for each lock.
type renewBackend struct {
	kind  *kind
	redis *client.Leases
}

// Renew implements renewal.Backend.
func (b *renewBackend) Renew(ctx context.Context, batch *renewal.Batch) error {
	if !b.redis.Sender.Shares() {
		return b.renewSeparately(ctx, batch)
	}
	keys := make([]string, 0, len(batch.Leases))
	args := make([]any, 0, 2*len(batch.Leases))
	var ttl time.Duration
	var millis any // ttl as an argument: most leases of a batch are equal
	for _, l := range batch.Leases {
		if l.TTL != ttl {
			ttl, millis = l.TTL, redisconn.Millis(l.TTL)
		}
		keys = b.kind.appendKeysToRenew(keys, l.Key, l.ID)
		args = append(args, l.ID, millis)
	}
	cmd := b.redis.Dedicated.RunBatch(ctx, batch.Leases[0].TTL, []scripts.Call{b.kind.renew.Call(keys, args...)})[0]
	if redis.HasErrorPrefix(cmd.Err(), "CROSSSLOT") {
		b.redis.Sender.Separate()
		return b.renewSeparately(ctx, batch)
	}
	return outcomes(cmd, batch.Outcomes)
}

func (b *renewBackend) renewSeparately(ctx context.Context, batch *renewal.Batch) (err error) {
	renewals := make([]scripts.Call, len(batch.Leases))
	for i, l := range batch.Leases {
		renewals[i] = b.kind.renew.Call(b.kind.keysToRenew(l.Key, l.ID), l.ID, redisconn.Millis(l.TTL))
	}
	for i, cmd := range b.redis.Dedicated.RunBatch(ctx, batch.Leases[0].TTL, renewals) {
		if failure := outcomes(cmd, batch.Outcomes[i:i+1]); failure != nil {
			err = failure
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
		into[i] = renewal.OutcomeGone
		if h {
			into[i] = renewal.OutcomeExtended
		}
	}
	return nil
}
