package hold

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// RenewByKey renews the leases of a batch in one pipeline, with one script for each Key. start returns the call for a
// Key without leases, add appends the arguments of a lease, and read sets the outcomes of the leases of a call from its
// reply. Leases are given by their indices in the batch. RenewByKey returns an error of read, if there is one.
func RenewByKey(
	ctx context.Context, conns *redisconn.Dedicated, batch *renewal.Batch,
	start func(key string) scripts.Call, add func(args []any, lease int) []any,
	read func(reply *redis.Cmd, leases []int) error,
) (err error) {
	callOf := make(map[string]int) // by key
	var calls []scripts.Call
	var leases [][]int // of each call
	for i, l := range batch.Leases {
		at, known := callOf[l.Key]
		if !known {
			at = len(calls)
			callOf[l.Key] = at
			calls, leases = append(calls, start(l.Key)), append(leases, nil)
		}
		calls[at].Args, leases[at] = add(calls[at].Args, i), append(leases[at], i)
	}
	for at, reply := range conns.RunBatch(ctx, batch.Leases[0].TTL, calls) {
		if failure := read(reply, leases[at]); failure != nil {
			err = failure
		}
	}
	return err
}
