package semaphore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// renewBackend renews grants. A batch is one script per semaphore, and one pipeline for all of them. The Key of a lease is the
// key of the semaphore's leases, its ID the ids of the grant's permits, 16 bytes each.
type renewBackend struct{ dedicated *calls.Dedicated }

const idLen = 16

// Renew implements renewal.Backend.
func (b *renewBackend) Renew(ctx context.Context, batch *renewal.Batch) (err error) {
	b.dedicated.Follow(ctx, batch.Leases[0].TTL)
	byKey := make(map[string]int)
	var renewals []scripts.Call
	var members [][]int // the leases of each call
	for i, l := range batch.Leases {
		at, known := byKey[l.Key]
		if !known {
			at = len(renewals)
			byKey[l.Key] = at
			renewals = append(renewals, scripts.Call{Keys: []string{l.Key}, Args: []any{"GT"}})
			members = append(members, nil)
		}
		renewals[at].Args = append(renewals[at].Args, calls.Millis(l.TTL), len(l.ID)/idLen)
		for id := l.ID; len(id) >= idLen; id = id[idLen:] {
			renewals[at].Args = append(renewals[at].Args, id[:idLen])
		}
		members[at] = append(members[at], i)
	}
	for at, cmd := range b.dedicated.RunBatch(ctx, scripts.PermitRenew, renewals) {
		if failure := outcomes(cmd, batch, members[at]); failure != nil {
			err = failure
			if !calls.Refused(failure) {
				b.dedicated.Reload()
			}
		}
	}
	return err
}

// outcomes reads the reply for some leases of the batch. A grant that has lost one permit is lost.
func outcomes(cmd *redis.Cmd, batch *renewal.Batch, members []int) error {
	held, err := cmd.Int64Slice()
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // overwritten: lost
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
		if len(held) < n {
			return fmt.Errorf("semaphore: %d answers too few", n-len(held))
		}
		outcome := renewal.Extended
		for _, one := range held[:n] {
			if one == 0 {
				outcome = renewal.Gone
			}
		}
		batch.Outcomes[i], held = outcome, held[n:]
	}
	return nil
}
