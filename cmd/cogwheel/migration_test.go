package main_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Some calls are redirected, and then the connection ends. If go-redis repeated the pipeline because of that, it would
// send these calls twice at once, and two goroutines would read replies into one command.
func TestInspect_SendsEachCallOnceWhileASlotMigrates(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.StartCluster(t)
	slot := cluster.Migrate(t, "{s}")
	inspect := func(cutAt string) error {
		var done atomic.Bool
		rdb := cluster.Client(t, func(o *redis.ClusterOptions) {
			o.ReadTimeout = redistest.Patience
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &cutConn{Conn: c, at: []byte(cutAt), done: &done}, err
			}
		})
		err := cogwheel.Inspect(ctx, rdb, "{s}")
		require.True(t, done.Load())
		return err
	}
	calls := func(command string) int {
		stats, err := slot.To.InfoMap(ctx, "commandstats").Result()
		require.NoError(t, err)
		var n int
		_, _ = fmt.Sscanf(stats["Commandstats"]["cmdstat_"+command], "calls=%d", &n)
		return n
	}

	require.ErrorContains(t, inspect("\r\ntype\r\n"), "nothing")
	require.Equal(t, 1, calls("type"))

	// A lock with three readers. Their leases have moved, the other keys have not.
	require.NoError(t, slot.From.Do(ctx, slot.Stable()...).Err())
	require.NoError(t, slot.From.HSet(ctx, "{s}", "mode", "read", "a:1", 1, "b:1", 1, "c:1", 1).Err())
	require.NoError(t, slot.From.Set(ctx, scripts.LockFence("{s}"), 7, 0).Err())
	require.NoError(t, slot.From.Do(ctx, slot.Migrating()...).Err())
	before := calls("pttl")
	require.ErrorIs(t, inspect("rwlock_timeout"), io.EOF)
	require.Equal(t, before+1, calls("pttl"))
}

// cutConn ends after the first line of the reply to the first call that contains at.
type cutConn struct {
	net.Conn
	at   []byte
	done *atomic.Bool // by this connection or another
	next bool
	end  bool
}

func (c *cutConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.at) && c.done.CompareAndSwap(false, true) {
		c.next = true
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (n int, err error) {
	if c.end {
		return 0, io.EOF
	}
	if !c.next {
		return c.Conn.Read(p)
	}
	for !c.end && n < len(p) {
		if _, err = io.ReadFull(c.Conn, p[n:n+1]); err != nil {
			return n, err
		}
		c.end = p[n] == '\n'
		n++
	}
	return n, nil
}
