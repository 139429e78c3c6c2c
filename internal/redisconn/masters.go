package redisconn

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// masters knows the masters that the ClusterSlots function of a cluster client names. For
// redis.NewFailoverClusterClient the function asks the Sentinels; the client itself asks for it only from time to time.
type masters struct {
	cluster *redis.ClusterClient
	ask     func(context.Context) ([]redis.ClusterSlot, error)
	query   query

	mu    sync.Mutex
	slots []redis.ClusterSlot
	asked time.Time // when the question was sent that slots answers
}

// HasOwnSlots reports whether a client has a function that names its masters. Then its servers are not those of a
// cluster: single servers, or a primary of Sentinels and its replicas.
func HasOwnSlots(rdb redis.UniversalClient) bool {
	c, ok := rdb.(*redis.ClusterClient)
	return ok && c.Options().ClusterSlots != nil
}

// of returns the address of the master of a key, and a client of a node with the same options. If the last answer is
// older than maxAge, it asks again. Without any answer, what the cluster client knows has to do.
func (m *masters) of(
	ctx context.Context, maxAge time.Duration, key string,
) (like *redis.Client, addr string, err error) {
	m.mu.Lock()
	old := m.query.dedicated.wheel.Now().Sub(m.asked) > maxAge
	m.mu.Unlock()
	if old {
		m.query.run(ctx, maxAge, patience, m.refresh)
	}
	like, err = m.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	slot := scripts.Slot(key)
	for _, r := range m.slots {
		if r.Start <= slot && slot <= r.End && len(r.Nodes) > 0 {
			return like, r.Nodes[0].Addr, nil
		}
	}
	return like, like.Options().Addr, nil
}

// refresh asks for the masters. If they have changed, the cluster client asks too, so that the calls of callers follow.
func (m *masters) refresh() {
	asked := m.query.dedicated.wheel.Now()
	slots, err := m.ask(m.query.dedicated.ctx)
	if err != nil {
		return
	}
	m.mu.Lock()
	changed := m.slots != nil && !slices.EqualFunc(m.slots, slots, sameMaster)
	m.slots, m.asked = slots, asked
	m.mu.Unlock()
	if changed {
		Reload(m.cluster)
	}
}

func sameMaster(a, b redis.ClusterSlot) bool {
	return a.Start == b.Start && a.End == b.End &&
		len(a.Nodes) > 0 && len(b.Nodes) > 0 && a.Nodes[0].Addr == b.Nodes[0].Addr
}
