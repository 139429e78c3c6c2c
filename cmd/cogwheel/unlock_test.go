package main_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// lockJSON is what inspect and unlock tell of a lock.
type lockJSON struct {
	Held    bool
	Mode    string
	Holders []struct{ ID, Metadata string }
}

func (s *service) lockOf(t *testing.T, name string) lockJSON {
	t.Helper()
	var report struct{ Objects []struct{ Lock lockJSON } }
	require.NoError(t, json.Unmarshal([]byte(must(t, s.url, "inspect", "--json", name)), &report))
	require.Len(t, report.Objects, 1)
	return report.Objects[0].Lock
}

func (s *service) requireHolders(t *testing.T, name string, n int) {
	t.Helper()
	require.Len(t, s.lockOf(t, name).Holders, n)
}

// clientOf returns the client of a hold.
func clientOf(id string) string {
	client, _, _ := strings.Cut(id, ":")
	return client
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	s := startService(t)

	t.Run("without a flag it shows the holder and frees nothing", func(t *testing.T) {
		r := run(t, s.url, "unlock", "stock:42")
		require.Equal(t, 2, r.status)
		require.Contains(t, r.stdout, s.holderOf(t, "stock:42"))
		require.Contains(t, r.stderr, "nothing was freed")
		s.requireHolders(t, "stock:42", 1)
	})

	t.Run("another holder is not freed", func(t *testing.T) {
		for _, id := range []string{"another:1", s.holderOf(t, "stock:42") + "1", s.holderOf(t, "report")} {
			r := run(t, s.url, "unlock", "stock:42", "--holder", id)
			require.Equal(t, 1, r.status)
			require.Contains(t, r.stderr, "is not held by")
		}
		require.Equal(t, 2, run(t, s.url, "unlock", "stock:42", "--holder", "x", "--force").status)
		s.requireHolders(t, "stock:42", 1)
	})

	t.Run("the holder of each kind is freed, and no other", func(t *testing.T) {
		for _, name := range []string{"report", "prices", "account:7"} {
			id := s.holderOf(t, name)
			require.Contains(t, must(t, s.url, "unlock", "--holder", id, name), name+": freed of "+id)
			require.False(t, s.rdb.HExists(t.Context(), name, id).Val())
			require.Equal(t, 1, run(t, s.url, "unlock", "--holder", id, name).status)
		}
		s.requireHolders(t, "account:9", 1)
		s.requireHolders(t, "catalogue", 2)
		reader := s.lockOf(t, "catalogue").Holders[0]
		must(t, s.url, "unlock", "catalogue", "--holder="+reader.ID)
		s.requireHolders(t, "catalogue", 1)
		require.NotEqual(t, reader, s.lockOf(t, "catalogue").Holders[0])
	})

	// Guarantees: L49.
	t.Run("the holder is notified at once", func(t *testing.T) {
		locks := s.newLocks(t)
		for _, flag := range []string{"--force", "--holder"} {
			l, err := locks.Mutex("notified").TryLock(t.Context())
			require.NoError(t, err)
			redistest.Poll(t, func() bool {
				return len(s.rdb.PubSubChannels(t.Context(), "cogwheel_client:"+clientOf(s.holderOf(t, "notified"))).Val()) == 1
			})
			if flag == "--holder" {
				flag += "=" + s.holderOf(t, "notified")
			}
			must(t, s.url, "unlock", flag, "notified")
			select {
			case <-l.Done():
			case <-redistest.Within(t, redistest.Patience).Done():
				require.Fail(t, "not notified", flag)
			}
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		}
	})

	t.Run("force frees all readers, and a lock whatever holds it", func(t *testing.T) {
		locks := s.newLocks(t)
		_, err := locks.RWMutex("catalogue").TryRLock(t.Context())
		require.NoError(t, err)
		s.requireHolders(t, "catalogue", 2)
		_, err = locks.RWMutex("prices").TryLock(t.Context())
		require.NoError(t, err)
		for _, name := range []string{"catalogue", "prices", "account:9"} {
			var freed struct {
				Name, Kind string
				Freed      bool
				Lock       lockJSON
			}
			require.NoError(t, json.Unmarshal([]byte(must(t, s.url, "unlock", "--json", "--force", name)), &freed))
			require.Equal(t, name, freed.Name)
			require.True(t, freed.Freed)
			require.NotEmpty(t, freed.Lock.Holders)
			require.Zero(t, s.rdb.Exists(t.Context(), name).Val())
		}
	})

	t.Run("the waiter of a freed lock gets it", func(t *testing.T) {
		waits := s.newLocks(t).Mutex("handed")
		held, err := waits.TryLock(t.Context())
		require.NoError(t, err)
		got := make(chan error, 1)
		s.newLocks(t).Mutex("handed").LockFunc(t.Context(), func(_ *redislock.Lock, err error) { got <- err })
		must(t, s.url, "unlock", "--force", "handed")
		require.NoError(t, <-got)
		require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
	})

	t.Run("what is no lock, or is free, is not found", func(t *testing.T) {
		for _, name := range []string{"exports", "smtp", "nothing"} {
			r := run(t, s.url, "unlock", "--force", name)
			require.Equal(t, 1, r.status)
			require.Contains(t, r.stderr, "there is no held lock of that name")
		}
	})
}

// A string lock is shown, listed and freed as any other. What another library has set is not.
func TestUnlock_AStringLock(t *testing.T) {
	t.Parallel()
	s := startService(t)
	l, err := s.newLocks(t).Mutex("shared", redislock.WithStringKey(), redislock.WithMetadata("host 3")).TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.rdb.Set(t.Context(), "foreign", "9f86d081884c7d659a2feaa0c55ad015", 0).Err())
	id := s.lockOf(t, "shared").Holders[0]
	require.Equal(t, "host 3", id.Metadata)
	require.Contains(t, must(t, s.url, "inspect", "shared"), "shared: string mutex\n")
	require.Regexp(t, `shared +string mutex +held, lease .* by `+regexp.QuoteMeta(id.ID), must(t, s.url, "list"))
	require.NotContains(t, must(t, s.url, "list"), "foreign")
	require.Contains(t, must(t, s.url, "inspect", "foreign"), "perhaps the lock of another library")
	require.Equal(t, 1, run(t, s.url, "unlock", "--force", "foreign").status)
	require.Equal(t, 1, run(t, s.url, "unlock", "--holder", id.ID+"1", "shared").status)
	require.Contains(t, must(t, s.url, "unlock", "--holder", id.ID, "shared"), "shared: freed of "+id.ID)
	<-l.Done()
	require.EqualValues(t, 1, s.rdb.Exists(t.Context(), "shared", "foreign").Val())
}
