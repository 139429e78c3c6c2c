package redistest_test

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// newFaultyClient returns a connected client without retries behind a dialer.
func newFaultyClient(t *testing.T, opts ...func(*redis.Options)) (*redistest.FaultDialer, *redis.Client) {
	t.Helper()
	const timeout = time.Second // the calls that are answered take less, beside a busy machine too
	d := &redistest.FaultDialer{Timeout: timeout}
	opts = append([]func(*redis.Options){func(o *redis.Options) {
		o.Dialer = d.Dial
		o.MaxRetries = -1
		o.DialerRetries = 1
		o.PoolSize = 1
		o.ReadTimeout = timeout
	}}, opts...)
	rdb := redistest.Shared(t).Client(t, opts...)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	return d, rdb
}

func TestFaultDialer_Set(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("BlackholeUp keeps requests from the server", func(t *testing.T) {
		t.Parallel()
		d, rdb := newFaultyClient(t)
		key := redistest.Name(t)
		d.Set(redistest.BlackholeUp)
		require.ErrorIs(t, rdb.Incr(ctx, key).Err(), os.ErrDeadlineExceeded)
		d.Set(redistest.Pass)
		require.ErrorIs(t, rdb.Get(ctx, key).Err(), redis.Nil)
	})

	t.Run("BlackholeDown lets requests execute and loses their replies", func(t *testing.T) {
		t.Parallel()
		d, rdb := newFaultyClient(t)
		key := redistest.Name(t)
		d.Set(redistest.BlackholeDown)
		require.ErrorIs(t, rdb.Incr(ctx, key).Err(), os.ErrDeadlineExceeded)
		d.Set(redistest.Pass)
		require.Equal(t, "1", rdb.Get(ctx, key).Val())
	})

	t.Run("BlackholeDown hides even the end of the server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		d := &redistest.FaultDialer{}
		conn, err := d.Dial(ctx, "tcp", s.Addr())
		require.NoError(t, err)
		defer conn.Close()
		d.Set(redistest.BlackholeDown)
		s.Kill()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})

	t.Run("a dial into a blackhole hangs for Timeout", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{Timeout: 50 * time.Millisecond}
		d.Set(redistest.BlackholeDown)
		begin := time.Now()
		_, err := d.Dial(ctx, "tcp", redistest.Shared(t).Addr())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond)
	})

	t.Run("a hanging dial succeeds when the blackhole ends", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		d.Set(redistest.BlackholeUp)
		heal := time.AfterFunc(20*time.Millisecond, func() { d.Set(redistest.Pass) })
		defer heal.Stop()
		conn, err := d.Dial(ctx, "tcp", redistest.Shared(t).Addr())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})

	t.Run("Refuse affects only new connections", func(t *testing.T) {
		t.Parallel()
		d, rdb := newFaultyClient(t)
		d.Set(redistest.Refuse)
		require.NoError(t, rdb.Ping(ctx).Err())
		d.Reset()
		require.Error(t, rdb.Ping(ctx).Err()) // finds the reset
		require.ErrorIs(t, rdb.Ping(ctx).Err(), syscall.ECONNREFUSED)
	})
}

func TestFaultDialer_LoseReply(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, tc := range map[string]struct {
		loss redistest.Loss
		want error
	}{
		"Swallow makes the call time out": {redistest.Swallow, os.ErrDeadlineExceeded},
		"Cut makes the call see a reset":  {redistest.Cut, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, rdb := newFaultyClient(t)
			key := redistest.Name(t)
			lost := d.LoseReply("INCR", 2, tc.loss)

			require.NoError(t, rdb.Incr(ctx, key).Err())
			require.NoError(t, rdb.Get(ctx, key).Err())
			require.ErrorIs(t, rdb.Incr(ctx, key).Err(), tc.want)
			<-lost
			require.Equal(t, "2", rdb.Get(ctx, key).Val(), "the server executed the call")
			require.NoError(t, rdb.Incr(ctx, key).Err())
		})
	}

	t.Run("a reply that comes after the end of its connection is lost too", func(t *testing.T) {
		t.Parallel()
		server, d := redistest.Start(t), &redistest.FaultDialer{}
		rdb := server.Client(t, func(o *redis.Options) {
			o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, 500*time.Millisecond, -1
		})
		require.NoError(t, rdb.Ping(ctx).Err())
		lost := d.LoseReply("incr", 1, redistest.Cut)
		server.Pause()
		require.ErrorIs(t, rdb.Incr(ctx, "n").Err(), os.ErrDeadlineExceeded)
		server.Resume()
		select {
		case <-lost:
		case <-redistest.Within(t, redistest.Patience).Done():
			require.Fail(t, "not reported")
		}
	})

	t.Run("a pipeline that the server reads and answers in parts is executed to its end", func(t *testing.T) {
		t.Parallel()
		d, rdb := newFaultyClient(t)
		key := redistest.Name(t)
		const calls = 20_000
		lost := d.LoseReply("incr", 1, redistest.Cut)
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range calls {
				p.Incr(ctx, key)
			}
			return nil
		})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		<-lost
		require.Equal(t, strconv.Itoa(calls), rdb.Get(ctx, key).Val())
	})

	t.Run("go-redis repeats the call unless told otherwise", func(t *testing.T) {
		t.Parallel()
		d, rdb := newFaultyClient(t, func(o *redis.Options) { o.MaxRetries = 3 })
		key := redistest.Name(t)
		lost := d.LoseReply("incr", 1, redistest.Cut)
		require.Equal(t, int64(2), rdb.Incr(ctx, key).Val())
		<-lost
	})
}

func TestFaultDialer_Delay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const delay = 30 * time.Millisecond

	for name, set := range map[string]func(*redistest.FaultDialer){
		"up":   func(d *redistest.FaultDialer) { d.Delay(delay, 0) },
		"down": func(d *redistest.FaultDialer) { d.Delay(0, delay) },
	} {
		t.Run(name+" makes a call take longer", func(t *testing.T) {
			t.Parallel()
			d, rdb := newFaultyClient(t)
			set(d)
			begin := time.Now()
			require.NoError(t, rdb.Ping(ctx).Err())
			require.GreaterOrEqual(t, time.Since(begin), delay)
		})
	}

	t.Run("bytes delayed past the deadline arrive with a later read", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		conn, err := d.Dial(ctx, "tcp", redistest.Shared(t).Addr())
		require.NoError(t, err)
		defer conn.Close()
		d.Delay(0, delay)
		_, err = conn.Write([]byte("PING\r\n"))
		require.NoError(t, err)
		buf := make([]byte, 64)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(delay/2)))
		_, err = conn.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, conn.SetReadDeadline(time.Time{}))
		n, err := conn.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "+PONG\r\n", string(buf[:n]))
	})
}

func TestFaultDialer_Reset(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	conn, err := d.Dial(t.Context(), "tcp", redistest.Shared(t).Addr())
	require.NoError(t, err)
	require.Equal(t, 1, d.Conns())

	read := make(chan error)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	d.Reset()
	require.ErrorIs(t, <-read, syscall.ECONNRESET)
	_, err = conn.Write([]byte("PING\r\n"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Zero(t, d.Conns())
	require.NoError(t, conn.Close(), "Close succeeds after a reset by the other side")
}

func TestFaultDialer_ResetOfADialInProgress(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t).Addr()
	for i := range 200 {
		d := &redistest.FaultDialer{}
		dialed := make(chan struct{})
		go func() {
			defer close(dialed)
			_, _ = d.Dial(t.Context(), "tcp", addr)
		}()
		for range i * 50 { // other instants of the dial
			runtime.Gosched()
		}
		d.Set(redistest.Refuse)
		d.Reset()
		<-dialed
		require.Zero(t, d.Conns())
	}
}

func TestFaultDialer_Slice(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	conn, err := d.Dial(t.Context(), "tcp", redistest.Shared(t).Addr())
	require.NoError(t, err)
	defer conn.Close()
	answer := func() (parts []string) {
		_, err := conn.Write([]byte("PING\r\n"))
		require.NoError(t, err)
		buffer := make([]byte, 64)
		for text := ""; text != "+PONG\r\n"; text += parts[len(parts)-1] {
			n, err := conn.Read(buffer)
			require.NoError(t, err)
			parts = append(parts, string(buffer[:n]))
		}
		return parts
	}
	require.Len(t, answer(), 1)
	require.Zero(t, d.Effects())
	d.Slice(1)
	require.Len(t, answer(), len("+PONG\r\n"))
	require.Equal(t, 1+len("+PONG\r\n"), d.Effects())
	d.Slice(0)
	require.Len(t, answer(), 1)
}

func TestFaultDialer_Answer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d, rdb := newFaultyClient(t)
	key := redistest.Name(t)
	d.Answer("incr", "upstream failure", false)
	require.EqualError(t, rdb.Incr(ctx, key).Err(), "upstream failure")
	require.ErrorIs(t, rdb.Get(ctx, key).Err(), redis.Nil, "the server did not get the call; others pass")
	require.True(t, d.Answered(key))
	require.False(t, d.Answered("another key"))

	d.Answer("incr", "upstream failure", true)
	cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, key)
		pipe.HGetAll(ctx, key+":hash")
		return nil
	})
	require.EqualError(t, err, "upstream failure")
	require.EqualError(t, cmds[1].Err(), "upstream failure", "each command of the call is answered")
	d.Answer("", "", false)
	require.Equal(t, int64(2), rdb.Incr(ctx, key).Val(), "the server executed the call, and its replies are lost")
}
