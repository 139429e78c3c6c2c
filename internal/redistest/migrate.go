package redistest

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Migration is a slot of a cluster that moves from one master to another.
type Migration struct {
	From, To *redis.Client // the master that the slot leaves, and the one that receives it

	tb      testing.TB
	slot    int
	toID    string
	masters []*redis.Client
}

// Migrate begins to move the slot of a key to another master, as resharding does. Until Finish, calls with
// absent keys are redirected to the new master, and calls with some present and some absent keys are refused
// with TRYAGAIN.
func (c *Cluster) Migrate(tb testing.TB, key string) *Migration {
	tb.Helper()
	m := &Migration{tb: tb}
	from := c.Owner(tb, key)
	for _, s := range c.Masters {
		rdb := s.Client(tb)
		m.masters = append(m.masters, rdb)
		switch {
		case s == from:
			m.From = rdb
		case m.To == nil:
			m.To = rdb
		}
	}
	ctx := context.Background()
	slot, err := m.From.ClusterKeySlot(ctx, key).Result()
	m.check(err)
	fromID, err := m.From.ClusterMyID(ctx).Result()
	m.check(err)
	m.toID, err = m.To.ClusterMyID(ctx).Result()
	m.check(err)
	m.slot = int(slot)
	m.check(m.To.Do(ctx, "cluster", "setslot", slot, "importing", fromID).Err())
	m.check(m.From.Do(ctx, m.Migrating()...).Err())
	return m
}

// Migrating is the command that makes the slot migrate, for From. Stable is the command that ends that without
// a change of the owner.
func (m *Migration) Migrating() []any {
	return []any{"cluster", "setslot", m.slot, "migrating", m.toID}
}

// Stable is the opposite of Migrating.
func (m *Migration) Stable() []any { return []any{"cluster", "setslot", m.slot, "stable"} }

// Finish moves the remaining keys and assigns the slot to its new master.
func (m *Migration) Finish() {
	m.tb.Helper()
	ctx := context.Background()
	for {
		keys, err := m.From.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
		m.check(err)
		if len(keys) == 0 {
			break
		}
		m.Move(keys...)
	}
	for _, rdb := range append([]*redis.Client{m.To, m.From}, m.masters...) {
		m.check(rdb.Do(ctx, "cluster", "setslot", m.slot, "node", m.toID).Err())
	}
}

// Move moves the given keys of the slot.
func (m *Migration) Move(keys ...string) {
	m.tb.Helper()
	host, port, _ := strings.Cut(m.To.Options().Addr, ":")
	args := []any{"migrate", host, port, "", 0, 5000, "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.check(m.From.Do(context.Background(), args...).Err())
}

func (m *Migration) check(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatalf("redistest: migrate slot %d: %v", m.slot, err)
	}
}
