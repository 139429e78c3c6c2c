package scripts_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Guarantees: L26.
func TestReadRelease(t *testing.T) {
	t.Parallel()

	t.Run("the last reader frees it and publishes 0; a second call does neither", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		heard := l.listen()
		l.read("me:1", 30_000)
		l.read("you:1", 30_000)
		require.Equal(t, 1, l.releaseRead("me:1"))
		require.Empty(t, heard())
		require.Equal(t, 0, l.releaseRead("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "you:1": "1"}, l.holders())
		require.Equal(t, 3, l.releaseRead("you:1"))
		require.Equal(t, "00", heard())
		l.requireFree()
		require.Zero(t, l.rdb.Exists(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("the hash expires with the longest remaining lease, Java's included", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		l.read("short:1", 5_000)
		l.javaRead("java:1", 2, 10*time.Second)
		l.read("long:1", 60_000)
		l.requireLease(60 * time.Second)
		require.Equal(t, 1, l.releaseRead("long:1"))
		l.requireLease(10 * time.Second)
		require.Equal(t, 1, l.releaseRead("short:1"))
		l.requireLease(10 * time.Second)
		require.Equal(t, map[string]string{"mode": "read", "java:1": "2"}, l.holders())
	})

	t.Run("the writer that is first in the line learns that the lock ends sooner", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		sub := l.rdb.Subscribe(t.Context(), scripts.RWChannel(l.name)+":w")
		t.Cleanup(func() { _ = sub.Close() })
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		l.read("dead:1", 5_000)
		l.read("me:1", 60_000)
		refused, err := scripts.WriteAcquire.Run(t.Context(), l.rdb, []string{l.name},
			"w:1:write", 30_000, "", "", "w:1", 0, 90_000, "PUBLISH", scripts.RWChannel(l.name)).Int64Slice()
		require.NoError(t, err)
		require.Greater(t, refused[1], int64(30_000), "so long it would wait if nobody released")
		require.Equal(t, 1, l.releaseRead("me:1"))
		ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
		defer cancel()
		message, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		var in int64
		_, err = fmt.Sscanf(message.Payload, "%d w:1", &in)
		require.NoError(t, err, message.Payload)
		require.LessOrEqual(t, in, int64(5_000))
	})

	t.Run("removes dead readers, and the lock if none remains", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		heard := l.listen()
		l.read("dead:1", 30_000)
		l.javaRead("dead:2", 1, 30*time.Second)
		l.read("me:1", 60_000)
		for _, id := range []string{"dead:1", "dead:2"} {
			require.NoError(t, l.rdb.Del(t.Context(), scripts.ReadTimeout(l.name, id)).Err())
		}
		l.read("me:2", 50_000)
		require.Equal(t, 1, l.releaseRead("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.holders())
		require.Equal(t, 3, l.releaseRead("me:2"))
		l.requireFree()
		require.Equal(t, "00", heard())
	})

	t.Run("a reader whose timeout has no expiry stays", func(t *testing.T) {
		t.Parallel()
		for _, more := range []int{0, 20} { // among many readers, a few are looked at first
			l := newRWLock(t)
			l.read("me:1", 60_000)
			for i := range more + 1 {
				id := fmt.Sprintf("lasting:%d", i)
				l.read(id, 30_000)
				require.True(t, l.rdb.Persist(t.Context(), scripts.ReadTimeout(l.name, id)).Val())
			}
			require.Equal(t, 1, l.releaseRead("me:1"))
			require.Len(t, l.holders(), more+2)
			l.requireLease(60 * time.Second) // what the hash had: nothing tells for how long they read
			for i := range more + 1 {
				require.Equal(t, 1, l.releaseRead(fmt.Sprintf("lasting:%d", i)))
			}
			l.requireFree()
		}
	})

	t.Run("removes dead readers although the hash expires slightly later", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		l.read("dead:1", 30_000)
		l.read("me:1", 60_000)
		require.NoError(t, l.rdb.Del(t.Context(), scripts.ReadTimeout(l.name, "dead:1")).Err())
		// Redis 7.0 reads its clock for each command of a script, so the hash may expire slightly after the
		// key of the longest lease.
		later := redis.NewScript(`return redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[2]) + 20)`)
		require.NoError(t, later.Run(t.Context(), l.rdb, []string{l.name, scripts.ReadTimeout(l.name, "me:1")}).Err())
		require.Equal(t, 1, l.releaseRead("me:1"))
		l.requireFree()
	})

	t.Run("returns 0 for a non-holder, a writer and a free lock", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		require.Equal(t, 0, l.releaseRead("me:1"))
		l.write("me:1", 30_000)
		require.Equal(t, 0, l.releaseRead("me:1"))
		require.Equal(t, 0, l.releaseWrite("you:1"))
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "0"}, l.holders())
	})

	t.Run("a read unlock by a Java writer does not free its write lock", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		heard := l.listen()
		l.write("me:1", 30_000)
		require.NoError(t, l.rdb.HSet(t.Context(), l.name, "me:1", 1).Err())
		require.NoError(t, l.rdb.Set(t.Context(), scripts.ReadTimeout(l.name, "me:1"), 1, time.Minute).Err())
		require.Equal(t, 1, l.releaseRead("me:1"))
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "0"}, l.holders())
		require.Empty(t, heard())
	})
}

func TestWriteRelease(t *testing.T) {
	t.Parallel()
	l := newRWLock(t)
	heard := l.listen()
	l.write("me:1", 30_000)
	require.Equal(t, 3, l.releaseWrite("me:1"))
	require.Equal(t, 0, l.releaseWrite("me:1"))
	l.requireFree()
	require.Equal(t, "00", heard())

	// A Java service may read under its own write lock. It keeps reading, and waiting readers are woken.
	l.write("me:2", 30_000)
	require.NoError(t, l.rdb.HSet(t.Context(), l.name, "me:2", 1).Err())
	require.Equal(t, 1, l.releaseWrite("me:2"))
	require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.holders())
	require.Equal(t, "00", heard())
}

func TestDowngrade(t *testing.T) {
	t.Parallel()
	l := newRWLock(t)
	heard := l.listen()
	l.write("me:1", 60_000)
	for range 2 {
		require.Equal(t, []int64{1, 30_000}, l.downgrade("me:1", "me:2", 30_000))
		require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.holders())
		l.requireLease(30 * time.Second)
	}
	require.Equal(t, "00", heard(), "published once")
	require.Equal(t, []int64{1, 30_000}, l.read("you:1", 30_000))
	require.Equal(t, 1, l.releaseRead("me:2"))
	require.Equal(t, int64(0), l.downgrade("me:1", "me:2", 30_000)[0], "a late copy")
	require.Equal(t, map[string]string{"mode": "read", "you:1": "1"}, l.holders())
}

func TestRWForce(t *testing.T) {
	t.Parallel()
	l := newRWLock(t)
	heard := l.listen()
	force := func(mode string) (int, error) {
		reply, err := scripts.RWForce.Run(
			t.Context(), l.rdb, []string{l.name}, mode, "PUBLISH", scripts.RWChannel(l.name), scripts.ClientChannel(""),
		).Int64Slice()
		if err != nil {
			return 0, err
		}
		require.Len(t, reply, 1)
		return int(reply[0]), nil
	}
	for i, step := range []struct {
		acquire func() // before force, if any
		mode    string
		want    int // what force returns
		isFree  bool
	}{
		{nil, "read", 0, true},
		{nil, "write", 0, true},
		{func() { l.read("a:1", 30_000) }, "write", 0, false},
		{func() { l.read("b:1", 30_000) }, "write", 0, false},
		{nil, "read", 1, true},
		{func() { l.write("a:1", 30_000) }, "read", 0, false},
		{nil, "write", 1, true},
		{nil, "write", 0, true},
	} {
		if step.acquire != nil {
			step.acquire()
		}
		got, err := force(step.mode)
		require.NoError(t, err)
		require.Equal(t, step.want, got, "step %d", i)
		require.Equal(t, step.isFree, len(l.holders()) == 0, "step %d", i)
	}
	require.Equal(t, "0000", heard())
	l.rdb.HSet(t.Context(), l.name, "java:1", 1)
	_, err := force("write")
	require.True(t, redis.HasErrorPrefix(err, "WRONGKIND"))
}

// Each client hears of all of its readers, in messages of at most a hundred.
// Guarantees: L49.
func TestRWForce_NotifiesTheClientOfEveryReader(t *testing.T) {
	t.Parallel()
	const readers = 205
	for _, verb := range []string{"PUBLISH", "SPUBLISH"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			l := newRWLock(t)
			clients := map[string]int{newClientID(t): readers, newClientID(t): 1}
			want, heard := map[string]bool{}, map[string]func() string{}
			for client, n := range clients {
				heard[client] = listen(t, l.rdb, scripts.ClientChannel(client))
				for i := range n {
					id := fmt.Sprintf("%s:%d", client, i)
					require.Equal(t, []int64{1, 30_000}, l.read(id, 30_000))
					want[id] = true
				}
			}
			reply, err := scripts.RWForce.Run(
				t.Context(), l.rdb, []string{l.name}, "read", verb, "c", scripts.ClientChannel(""),
			).Slice()
			require.NoError(t, err)
			require.Empty(t, l.holders())
			require.Equal(t, int64(1), reply[0])
			took := func(id string) {
				require.True(t, want[id], "%s, once", id)
				delete(want, id)
			}
			for _, id := range reply[1:] {
				require.Equal(t, "SPUBLISH", verb)
				took(id.(string))
			}
			for client, n := range clients {
				for ; verb == "PUBLISH" && n > 0; n -= 100 {
					ids, name, _ := strings.Cut(heard[client](), " ")
					require.Equal(t, l.name, name)
					all := strings.Split(ids, ",")
					require.LessOrEqual(t, len(all), 100)
					for _, id := range all {
						took(id)
					}
				}
			}
			require.Empty(t, want)
		})
	}
}
