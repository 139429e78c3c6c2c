package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// answer is an error reply.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func TestErrors_SayWhatHappenedToACall(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for _, c := range []struct {
		err                                                  error
		executed, refused, transient, permanent, unavailable bool
	}{
		{err: dial, unavailable: true},
		{err: read, executed: true, unavailable: true},
		{err: io.EOF, executed: true, unavailable: true},
		{err: redis.ErrClosed},
		{err: redis.ErrPoolTimeout, unavailable: true},
		{err: context.DeadlineExceeded, executed: true, unavailable: true},
		{err: answer("ERR wrong"), executed: true, refused: true, unavailable: true},
		{err: answer("NOPERM this user"), refused: true, permanent: true},
		{err: answer("NOAUTH Authentication required."), refused: true},
		{err: answer("OOM command not allowed when used memory > 'maxmemory'."), refused: true, transient: true, unavailable: true},
		{err: answer("LOADING Redis is loading"), refused: true, transient: true, unavailable: true},
		{err: answer("READONLY You can't write"), refused: true, transient: true, unavailable: true},
		{err: answer("CLUSTERDOWN The cluster is down"), refused: true, transient: true, unavailable: true},
		{err: answer("MOVED 1 127.0.0.1:7000"), refused: true, transient: true, unavailable: true},
		{err: answer("NOREPLICAS Not enough good replicas to write."), refused: true, transient: true, unavailable: true},
		{err: answer("BUSY Redis is busy running a script."), refused: true, transient: true, unavailable: true},
		{err: answer("BUSYGROUP of a stream"), executed: true, refused: true, unavailable: true},
		{err: fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", redis.Nil), unavailable: true},
		{err: answer("TRYAGAIN Multiple keys request during rehashing of slot"), refused: true, transient: true, unavailable: true},
		{err: answer("ERR Script attempted to access a non local key in a cluster node script: abc"), executed: true, refused: true, unavailable: true},
		{err: answer("MISCONF Redis is configured to save RDB snapshots"), refused: true, transient: true, unavailable: true},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			require.Equal(t, c.executed, redisconn.MayHaveExecuted(err), err)
			require.Equal(t, c.refused, redisconn.Refused(err), err)
		}
		require.Equal(t, c.transient, redisconn.Transient(c.err), c.err)
		require.Equal(t, c.permanent, redisconn.Permanent(c.err), c.err)
		require.Equal(t, c.unavailable, redisconn.IsUnavailable(c.err), c.err)
	}
}

func TestOperationError(t *testing.T) {
	errClosed, errWrongKind := errors.New("pkg: closed"), errors.New("pkg: something else")
	for _, c := range []struct {
		err   error
		wrong bool
		text  string
	}{
		{err: errClosed, text: `pkg: lock "a": closed`},
		{err: fmt.Errorf("%w; late", errClosed), text: `pkg: lock "a": closed; late`},
		{err: io.EOF, text: `pkg: lock "a": EOF`},
		{err: answer("ERR wrong"), text: `pkg: lock "a": ERR wrong`},
		{err: answer("ERR hash value is not an integer"), text: `pkg: lock "a": ERR hash value is not an integer`},
		{err: answer("WRONGTYPE x"), wrong: true, text: `pkg: lock "a": something else: WRONGTYPE x`},
		{err: answer("WRONGKIND"), wrong: true, text: `pkg: lock "a": something else: WRONGKIND`},
		{
			err: answer("ERR value is not an integer or out of range"), wrong: true,
			text: `pkg: lock "a": something else: ERR value is not an integer or out of range`,
		},
	} {
		err := redisconn.OperationError("pkg", errWrongKind, "lock", "a", c.err)
		require.EqualError(t, err, c.text)
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.wrong, errors.Is(err, errWrongKind), err)
		require.Equal(t, c.wrong, redisconn.WrongKind(c.err))
	}
	require.False(t, redisconn.WrongKind(nil))
}

func TestMillis_RoundsUp(t *testing.T) {
	require.EqualValues(t, 1, redisconn.Millis(time.Nanosecond))
	require.EqualValues(t, 1, redisconn.Millis(time.Millisecond))
	require.EqualValues(t, 2, redisconn.Millis(time.Millisecond+1))
	require.EqualValues(t, 30_000, redisconn.Millis(30*time.Second))
}
