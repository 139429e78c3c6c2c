package semaphore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// idLen is the length of a permit id in bytes, as in Redisson.
const idLen = 16

// renewBackend renews the grants of plain or of fair semaphores. A batch is one pipeline, with one script per
// semaphore. The Key of a lease is the name of its semaphore. Its ID is the concatenation of the permit ids of
// its grant.
type renewBackend struct {
	client *Client
	fair   bool
}

// renewalKeys returns the keys of the script that renews permits.
func (c *Client) renewalKeys(name string, fair bool) []string {
	k := keysOf(name, fair)
	if c.idleMillis > 0 {
		return []string{k.leases, k.permits}
	}
	return []string{k.leases}
}

// Renew implements renewal.Backend.
func (b *renewBackend) Renew(ctx context.Context, batch *renewal.Batch) error {
	start := func(name string) scripts.Call {
		return scripts.PermitRenew.Call(b.client.renewalKeys(name, b.fair), "GT", b.client.idleMillis)
	}
	add := func(args []any, i int) []any {
		id := batch.Leases[i].ID
		args = append(args, redisconn.Millis(batch.Leases[i].TTL), len(id)/idLen)
		for ; len(id) >= idLen; id = id[idLen:] {
			args = append(args, id[:idLen])
		}
		return args
	}
	read := func(reply *redis.Cmd, grants []int) error { return setOutcomes(reply, batch, grants) }
	return hold.RenewByKey(ctx, b.client.redis.Dedicated, batch, start, add, read)
}

// setOutcomes reads the reply for some leases of the batch. A grant without one of its permits is gone.
func setOutcomes(cmd *redis.Cmd, batch *renewal.Batch, members []int) error {
	total := 0
	for _, i := range members {
		total += len(batch.Leases[i].ID) / idLen
	}
	renewed, err := scripts.Flags(cmd, total)
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // the key was overwritten
		for _, i := range members {
			batch.Outcomes[i] = renewal.OutcomeGone
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("semaphore: renew: %w", err)
	}
	for _, i := range members {
		n := len(batch.Leases[i].ID) / idLen
		batch.Outcomes[i] = renewal.OutcomeExtended
		if slices.Contains(renewed[:n], false) {
			batch.Outcomes[i] = renewal.OutcomeGone
		}
		renewed = renewed[n:]
	}
	return nil
}
