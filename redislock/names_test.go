package redislock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A name may be any bytes, among them those that tell queues apart.
func TestRedislock_WaitersListenUnderAnyName(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb)
	kinds := map[string]func(name string) (m *redislock.Mutex, channel string){
		"plain": func(name string) (*redislock.Mutex, string) { return c.Mutex(name), scripts.LockChannel(name) },
		"with metadata": func(name string) (*redislock.Mutex, string) {
			return c.Mutex(name, redislock.WithMetadata("host 7\x00")), scripts.LockChannel(name)
		},
		"fair": func(name string) (*redislock.Mutex, string) {
			return c.FairMutex(name, redislock.WithMetadata("a b")), scripts.LockChannel(name) + ":"
		},
		"read":  func(name string) (*redislock.Mutex, string) { return c.RWMutex(name).Reader(), scripts.RWChannel(name) },
		"write": func(name string) (*redislock.Mutex, string) { return c.RWMutex(name).Writer(), scripts.RWChannel(name) },
	}
	for kind, open := range kinds {
		for _, tail := range []string{"", " ", "a\x00b", "\x00", "fair\x00x", "{tag}", "日本"} {
			t.Run(fmt.Sprintf("%s/%q", kind, tail), func(t *testing.T) {
				m, channel := open(redistest.Name(t) + tail)
				holder := m
				if kind == "read" {
					holder = c.RWMutex(m.Name()).Writer()
				}
				held := mustLock(t, holder)
				got := make(chan error, 1)
				m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
					if err == nil {
						err = l.Unlock(t.Context())
					}
					got <- err
				})
				poll(t, func() bool { return listening(t, rdb, channel) == 1 })
				require.NoError(t, held.Unlock(t.Context()))
				require.NoError(t, <-got)
			})
		}
	}
}

// listening is how many channels that begin so somebody listens to.
func listening(t *testing.T, rdb *redis.Client, prefix string) (n int) {
	t.Helper()
	channels, err := rdb.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, c := range channels {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}
