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

func TestKinds_AcceptOddNames(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		c, base := newClient(t, dep.rdb), redistest.Name(t)
		for _, name := range []string{
			" ", ":", "*?[", "\x00\r\n", "\xff", "{a}{b}", "a{b}c", "d:}{e}", "{f}:g:h", "redisson_lock__channel:{x}",
			strings.Repeat("x", 64<<10-len(base)),
		} {
			for _, kind := range singleNameKinds {
				m := newMutex(c, kind, base+name)
				l := mustTryLock(t, m)
				require.Equal(t, int64(1), dep.rdb.Exists(t.Context(), base+name).Val())
				next := callAsync(func() (*redislock.Lock, error) {
					return newMutex(c, kind, base+name).Lock(within(t, patience))
				})
				mustUnlock(t, l)
				mustUnlock(t, next.await(t))
				requireFree(t, dep.rdb, base+name)
			}
		}
	})
}

// A name may hold any bytes, including separators of the library's own keys.
func TestWaiters_SubscribeUnderAnyName(t *testing.T) {
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
		"string": func(name string) (*redislock.Mutex, string) {
			return c.Mutex(name, redislock.WithStringKey()), scripts.LockChannel(name)
		},
		"read": func(name string) (*redislock.Mutex, string) {
			return c.RWMutex(name).Reader(), scripts.RWChannel(name)
		},
		"write": func(name string) (*redislock.Mutex, string) {
			return c.RWMutex(name).Writer(), scripts.RWChannel(name)
		},
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
				poll(t, func() bool { return countSubscribedChannels(t, rdb, channel) == 1 })
				require.NoError(t, held.Unlock(t.Context()))
				require.NoError(t, <-got)
			})
		}
	}
}

// countSubscribedChannels returns the number of channels with the prefix that have subscribers.
func countSubscribedChannels(t *testing.T, rdb *redis.Client, prefix string) (n int) {
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
