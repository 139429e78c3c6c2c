package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// held are permits in Redis from their grant to their end: what a Grant stands for. It implements hold.Held.
type held struct {
	hold.Hold
	client    *Client
	name      string
	ids       []string // idLen bytes each
	token     int64
	ttl       time.Duration
	madeAt    time.Duration // by the clock of the Client
	reported  hold.Reported // to the Stats and the Hooks
	fair      bool
	ambiguous bool // a copy of the request may still be in flight

	unlimited *conventions.End // of a grant of no permits, which has no lease; else nil
}

// start starts the lease of permits that Redis granted. Their request was sent at sentAt or later.
func (h *held) start(renew bool, sentAt time.Time) (err error) {
	c := h.client
	spec := renewal.Spec{
		Key: h.name, ID: h.leaseID(), TTL: h.ttl, SentAt: sentAt,
		Lost: ErrLost, OnLost: func(err error) { h.Lost(h, h.ttl, err) },
	}
	if renew {
		h.Lease, err = c.leased(h.fair).renewals.Add(spec)
	} else {
		h.Lease, err = c.redis.Renewer.Watch(spec)
	}
	return err
}

// leaseID is the ID of the lease.
func (h *held) leaseID() string { return strings.Join(h.ids, "") }

// hexIDs returns the ids of the permits as Grant.IDs.
func (h *held) hexIDs() []string {
	ids := make([]string, len(h.ids))
	for i, id := range h.ids {
		ids[i] = hex.EncodeToString([]byte(id))
	}
	return ids
}

// Drop implements hold.Held.
func (h *held) Drop() { h.client.removeHeld(h) }

// Report implements hold.Held.
func (h *held) Report(end error) { h.client.monitor.ended(h, end) }

// ReleaseLater implements hold.Held.
func (h *held) ReleaseLater(delay time.Duration) {
	lease := max(h.ttl, h.Longest())
	h.client.releaseLater(pendingRelease{h.name, h.fair, h.ids}, delay, lease, h.ambiguous)
}

// extend is Grant.Extend.
func (h *held) extend(ctx context.Context, d time.Duration) error {
	if h.unlimited != nil {
		return h.unlimited.Err()
	}
	c := h.client
	return h.Extend(d, func() (all bool, sentAt time.Time, err error) {
		c.mayBeHeldFor(d)
		r, err := c.call(ctx, "extend", h.name, func() scripts.Call {
			args := appendIDs([]any{"GT", c.idleMillis, redisconn.Millis(d), len(h.ids)}, h.ids)
			return scripts.PermitRenew.Call(c.renewalKeys(h.name, h.fair), args...)
		})
		if errors.Is(err, ErrWrongKind) { // the key was overwritten
			return false, r.SentAt, nil
		}
		if err != nil {
			return false, r.SentAt, err
		}
		renewed, err := r.Flags(len(h.ids))
		if err != nil {
			return false, r.SentAt, operationError("extend", h.name, err)
		}
		return !slices.Contains(renewed, false), r.SentAt, nil
	})
}

// release is Grant.Release.
func (h *held) release(ctx context.Context) error {
	if h.unlimited != nil {
		if !h.unlimited.Close(ErrNotHeld) {
			return h.unlimited.Err()
		}
		return nil
	}
	return h.Hold.Release(h, func() error { return h.free(ctx) })
}

// free releases permits that are no longer held.
func (h *held) free(ctx context.Context) error {
	c, request := h.client, &releaseRequest{ids: h.ids}
	began := c.wheel.Now()
	err := queueRelease(ctx, c, c.leased(h.fair).releases, h.name, request, func(err error) error {
		if err != nil && !redisconn.WrongKind(err) || h.ambiguous {
			h.ReleaseLater(0)
		}
		return releaseError(h.name, err)
	})
	switch {
	case errors.Is(err, ErrWrongKind):
		return fmt.Errorf("%w: %w", ErrLost, err)
	case err != nil || request.removed == len(h.ids):
		return err
	case h.LostBefore(began, request.ambiguous):
		return fmt.Errorf("%w: release %s: gone from Redis", ErrLost, scripts.Quote(h.name))
	default:
		return nil
	}
}
