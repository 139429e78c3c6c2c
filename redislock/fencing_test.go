package redislock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// fencedWrite is a store that remembers the highest token and refuses lower ones.
const fencedWrite = `
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// write writes to the store as a holder with that token; an unfenced store takes everything.
func write(ctx context.Context, rdb redis.UniversalClient, name string, fenced bool, token int64, value string) (accepted bool, err error) {
	if !fenced {
		return true, rdb.Set(ctx, name+":value", value, 0).Err()
	}
	n, err := rdb.Eval(ctx, fencedWrite, []string{name + ":value", name + ":seen"}, token, value).Int()
	return n == 1, err
}

// A holder that is frozen for longer than its lease wakes up and writes before it has looked at anything.
func TestLock_FrozenHolderWritesTooLate(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t)
	for _, fenced := range []bool{true, false} {
		what := "a fenced store refuses it"
		if !fenced {
			what = "a store without a fence takes it (control)"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			role := roleFrozen
			if fenced {
				role = roleFrozenFenced
			}
			holder := startChild(t, role, server.Addr(), name)
			require.Equal(t, "held", holder.readLine(t))
			freeze(t, holder.cmd)

			next := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithFencing()))
			accepted, err := write(t.Context(), rdb, name, fenced, next.Token(), "of the new holder")
			require.NoError(t, err)
			require.True(t, accepted)

			_, err = fmt.Fprintln(holder.stdin, "write")
			require.NoError(t, err)
			thaw(t, holder.cmd)
			require.Equal(t, fmt.Sprintf("valid=false accepted=%v", !fenced), holder.readLine(t))
			want := "of the new holder"
			if !fenced {
				want = "of the frozen holder"
			}
			require.Equal(t, want, rdb.Get(t.Context(), name+":value").Val())
			require.NoError(t, next.Unlock(t.Context()))
		})
	}
}
