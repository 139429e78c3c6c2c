package semaphore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// idLen is the length of a permit id in bytes, as in Redisson.
const idLen = 16

// renewBackend renews grants. A batch is one script per semaphore, and one pipeline for all of them. The
// Key of a lease is the leases key of its semaphore. Its ID is the ids of the permits of its grant, one
// after another.
type renewBackend struct{ dedicated *redisconn.Dedicated }

// Renew implements renewal.Backend.
func (b *renewBackend) Renew(ctx context.Context, batch *renewal.Batch) (err error) {
	b.dedicated.Follow(ctx, batch.Leases[0].TTL)
	callOf := make(map[string]int) // by key
	var renewals []scripts.Call
	var members [][]int // per call, the indices of its leases
	for i, l := range batch.Leases {
		at, known := callOf[l.Key]
		if !known {
			at = len(renewals)
			callOf[l.Key] = at
			renewals = append(renewals, scripts.Call{Script: scripts.PermitRenew, Keys: []string{l.Key}, Args: []any{"GT"}})
			members = append(members, nil)
		}
		args := append(renewals[at].Args, redisconn.Millis(l.TTL), len(l.ID)/idLen)
		for id := l.ID; len(id) >= idLen; id = id[idLen:] {
			args = append(args, id[:idLen])
		}
		renewals[at].Args, members[at] = args, append(members[at], i)
	}
	for at, cmd := range b.dedicated.RunBatch(ctx, renewals) {
		if failure := setOutcomes(cmd, batch, members[at]); failure != nil {
			err = failure
			if !redisconn.Refused(failure) {
				b.dedicated.Reload()
			}
		}
	}
	return err
}

// setOutcomes reads the reply for some leases of the batch. A grant that has lost one of its permits is
// gone.
func setOutcomes(cmd *redis.Cmd, batch *renewal.Batch, members []int) error {
	renewed, err := cmd.Int64Slice()
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // the key was overwritten
		for _, i := range members {
			batch.Outcomes[i] = renewal.Gone
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, i := range members {
		n := len(batch.Leases[i].ID) / idLen
		if len(renewed) < n {
			return fmt.Errorf("semaphore: the reply to a renewal is %d ids short", n-len(renewed))
		}
		batch.Outcomes[i] = renewal.Extended
		if slices.Contains(renewed[:n], 0) {
			batch.Outcomes[i] = renewal.Gone
		}
		renewed = renewed[n:]
	}
	return nil
}
