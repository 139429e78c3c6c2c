package delay

import (
	"context"
	"fmt"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// renewBackend renews the leases of claimed tasks. The Key of a lease is the name of its queue, its ID "token id". A
// batch is one pipeline with one script per queue.
type renewBackend struct{ client *Client }

// Renew implements renewal.Backend.
func (b renewBackend) Renew(ctx context.Context, batch *renewal.Batch) (err error) {
	callOf := make(map[string]int) // by key
	var renewals []scripts.Call
	var members [][]int // per call, the indices of its leases
	ended := make([]bool, len(batch.Leases))
	for i, l := range batch.Leases {
		at, known := callOf[l.Key]
		if !known {
			at = len(renewals)
			callOf[l.Key] = at
			keys := []string{scripts.DelayKey(l.Key, "running"), scripts.DelayKey(l.Key, "attempts")}
			renewals, members = append(renewals, scripts.DelayRenew.Call(keys)), append(members, nil)
		}
		token, id, _ := strings.Cut(l.ID, " ")
		lease := micros(l.TTL)
		waits, over := b.client.phase(l.Key, l.ID)
		if ended[i] = over; waits {
			lease += ".5"
		}
		renewals[at].Args = append(renewals[at].Args, id, token, lease)
		members[at] = append(members[at], i)
	}
	for at, cmd := range b.client.redis.Dedicated.RunBatch(ctx, batch.Leases[0].TTL, renewals) {
		renewed, failure := scripts.Flags(cmd, len(members[at]))
		if failure != nil {
			err = fmt.Errorf("delay: renew: %w", failure)
			continue
		}
		for k, i := range members[at] {
			batch.Outcomes[i] = renewal.Gone
			if renewed[k] || ended[i] { // if the end has just been recorded, no lease is lost
				batch.Outcomes[i] = renewal.Extended
			}
		}
	}
	return err
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
