package redislock

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// This file has the notification of holders by ForceUnlock. A Client with holds subscribes to one channel,
// whose name is in the ids of its holds. A message names holds that were freed by force, and the Client asks
// Redis whether they still exist. Messages are hints, as for waiters: without them, the next renewal finds the
// loss.

// listenDelay is how long a Client must have had holds before it subscribes, or none before it unsubscribes. A
// process that holds locks only for moments has no subscription.
const listenDelay = 100 * time.Millisecond

// holdingLocked reports whether the Client has holds.
func (c *Client) holdingLocked() bool { return len(c.holders)+len(c.held) > 0 }

// followHoldsLocked starts the timer that begins or ends the subscription, if that no longer fits the holds.
func (c *Client) followHoldsLocked() {
	if c.listenChanges || c.holdingLocked() == (c.stopListening != nil) || c.gate.Closed() {
		return
	}
	timer, err := wheelentry.AfterFunc(c.wheel, listenDelay, func(error) {
		if c.gate.Enter() {
			c.gate.Workers.Go(c.listenWhileHolding)
		}
	})
	c.listenTimer, c.listenChanges = timer, err == nil
}

// listenWhileHolding subscribes to the Client's channel if the Client has holds, and unsubscribes otherwise.
func (c *Client) listenWhileHolding() {
	defer c.gate.Leave()
	c.mu.Lock()
	stop, holding := c.stopListening, c.holdingLocked()
	c.mu.Unlock()
	switch {
	case holding && stop == nil:
		stop = c.redis.Channels.Receive(scripts.ClientChannel(c.ids.client), c.notified, nil)
	case !holding && stop != nil:
		stop()
		stop = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopListening, c.listenChanges = stop, false
	c.followHoldsLocked()
}

// notified receives a message: ids of holds, separated by commas, a space, and the name of their lock. After a
// confirmation of the subscription, message is "": earlier messages may have been lost, so all holds are checked.
func (c *Client) notified(message string) {
	ids, name, _ := strings.Cut(message, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if message == "" {
		for _, h := range c.held {
			c.unchecked[h] = true
		}
		for _, h := range c.holders {
			c.unchecked[h] = true
		}
	}
	for id := range strings.SplitSeq(ids, ",") {
		if h := c.holdOfLocked(name, id); h != nil {
			c.unchecked[h] = true
		}
	}
	if len(c.unchecked) > 0 && !c.checking && c.gate.Enter() {
		c.checking = true
		c.gate.Workers.Go(c.checkHolds)
	}
}

// holdOfLocked returns the present hold with the id, or nil.
func (c *Client) holdOfLocked(name, id string) *held {
	if h := c.holders[name]; h != nil && h.id == id {
		return h
	}
	if h := c.held[id]; h != nil && h.name() == name {
		return h
	}
	return nil
}

// checkHolds asks Redis for the unchecked holds, one batch after the other, until none is left. Messages that
// come meanwhile make the next batch, so any number of them costs at most one batch at a time.
func (c *Client) checkHolds() {
	defer c.gate.Leave()
	for {
		c.mu.Lock()
		holds := slices.Collect(maps.Keys(c.unchecked))
		c.unchecked = make(map[*held]bool)
		c.checking = len(holds) > 0
		c.mu.Unlock()
		if len(holds) == 0 {
			return
		}
		for batch := range slices.Chunk(holds, releaseBatch) {
			c.checkBatch(batch)
		}
	}
}

// checkBatch ends the holds that are gone from Redis. If Redis does not answer, their renewals continue as
// before.
func (c *Client) checkBatch(holds []*held) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	calls := make([]scripts.Call, len(holds))
	for i, h := range holds {
		// A renewal for so short a time extends no lease. Its reply tells whether the hold exists.
		calls[i] = h.kind().renew.Call(h.kind().keysToRenew(h.name(), h.id), h.id, redisconn.Millis(renewal.MinTTL))
	}
	for i, cmd := range c.redis.Dedicated.RunBatch(ctx, DefaultLease, calls) {
		if held, err := scripts.Flags(cmd, 1); err != nil || held[0] {
			continue
		}
		c.mu.Lock()
		h := c.holdOfLocked(holds[i].name(), holds[i].id) // the lock may have been handed over meanwhile
		c.mu.Unlock()
		if h != nil {
			h.MarkLost()
		}
	}
}

// notify tells clients that some of their holds were freed by force. Its failure is no error: the holders learn
// of the loss at their next renewal.
func (m *Mutex) notify(ids []string) {
	const idsPerMessage = 100
	c, byClient := m.client(), make(map[string][]string)
	for _, id := range ids {
		if client, _, ok := strings.Cut(id, ":"); ok {
			byClient[client] = append(byClient[client], id)
		}
	}
	ctx, pipe := context.Background(), c.redis.Client.Pipeline()
	for client, all := range byClient {
		for some := range slices.Chunk(all, idsPerMessage) {
			message := strings.Join(some, ",") + " " + m.name
			publish := redis.NewCmd(ctx, c.redis.Channels.Verb(), scripts.ClientChannel(client), message)
			_ = pipe.Process(ctx, scripts.Once(publish)) // only queues
		}
	}
	_, _ = pipe.Exec(ctx)
}
