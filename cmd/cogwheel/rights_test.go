package main_test

import (
	"crypto/rand"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// As the users of docs/tool.md, unlock and bench are refused nothing, and may run every command of their scripts. Without
// any other of these rights they are refused something.
func TestTool_HasTheRightsThatItNeeds(t *testing.T) {
	t.Parallel()
	for user, c := range map[string]struct {
		scripts []*scripts.Script
		use     func(t *testing.T, s *service, url string) (failed bool)
	}{
		"unlocker": {
			[]*scripts.Script{
				scripts.LockForce, scripts.RWForce,
				scripts.LockRelease, scripts.FairLockRelease, scripts.ReadRelease, scripts.WriteRelease,
			}, unlockEverything,
		},
		"bencher": {
			[]*scripts.Script{scripts.LockAcquire, scripts.LockRelease, scripts.RateGCRA},
			func(t *testing.T, _ *service, url string) bool {
				t.Helper()
				return run(t, url, "bench", "--duration", "10ms", "--callers", "2").status != 0
			},
		},
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := &service{server: server, rdb: server.Client(t)}
			as := func(rights []string) (failed bool, refused []string) {
				server.User(t, user, rights...)
				require.NoError(t, s.rdb.ACLLogReset(t.Context()).Err())
				require.NoError(t, s.rdb.ScriptFlush(t.Context()).Err())
				u := url.URL{Scheme: "redis", User: url.UserPassword(user, "secret"), Host: server.Addr()}
				failed = c.use(t, s, u.String())
				log, err := s.rdb.ACLLog(t.Context(), 100).Result()
				require.NoError(t, err)
				for _, entry := range log {
					if object := entry.Object; !strings.HasPrefix(object, "client") && object != "info" { // of go-redis, to share scripts
						refused = append(refused, object)
					}
				}
				return failed, refused
			}
			rights := redistest.DocumentedRights(t, user, "app:")
			failed, refused := as(rights)
			require.False(t, failed)
			require.Empty(t, refused)
			inScripts := []string{"+eval"} // if the server does not know a script
			for _, script := range c.scripts {
				for _, command := range script.Commands() {
					inScripts = append(inScripts, "+"+command)
				}
			}
			require.Subset(t, rights, inScripts)
			for _, right := range rights {
				failed, refused := as(slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right }))
				require.True(t, failed || refused != nil || slices.Contains(inScripts, right), "%s is not needed", right)
			}
		})
	}
}

// unlockEverything holds a lock of each kind, has the tool free it by its holder and by force, and reports whether it failed to.
func unlockEverything(t *testing.T, s *service, address string) (failed bool) {
	t.Helper()
	ctx, c, other := t.Context(), s.newLocks(t), s.newLocks(t)
	for what, kind := range map[string]func(c *redislock.Client, name string) *redislock.Mutex{
		"plain": func(c *redislock.Client, name string) *redislock.Mutex { return c.Mutex(name, redislock.WithFencing()) },
		"fair":  func(c *redislock.Client, name string) *redislock.Mutex { return c.FairMutex(name) },
		"read":  func(c *redislock.Client, name string) *redislock.Mutex { return c.RWMutex(name).Reader() },
		"write": func(c *redislock.Client, name string) *redislock.Mutex { return c.RWMutex(name).Writer() },
	} {
		for _, force := range []bool{false, true} {
			name := "app:" + what + rand.Text()
			_, err := kind(c, name).TryLock(ctx)
			require.NoError(t, err)
			if what == "read" {
				_, err := kind(other, name).TryLock(ctx)
				require.NoError(t, err)
			}
			if what == "fair" {
				kind(other, name).LockFunc(ctx, func(*redislock.Lock, error) {})
				redistest.Poll(t, func() bool { return s.rdb.LLen(ctx, "redisson_lock_queue:{"+name+"}").Val() == 1 })
			}
			args := []string{"unlock", "--holder", s.holderOf(t, name), name}
			if force {
				args = []string{"unlock", "--force", name}
			}
			failed = run(t, address, args...).status != 0 || failed
		}
	}
	return failed
}
