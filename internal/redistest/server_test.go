//go:build unix

package redistest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestStart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("serves on its own port and ends with the test", func(t *testing.T) {
		t.Parallel()
		var s *redistest.Server
		var pid int
		t.Run("while the test runs", func(t *testing.T) {
			s = redistest.Start(t)
			pid = s.PID()
			require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())
			require.True(t, alive(pid))
		})
		require.Zero(t, s.PID())
		require.False(t, alive(pid))
	})

	t.Run("a paused server ends with the test too", func(t *testing.T) {
		t.Parallel()
		var pid int
		t.Run("while the test runs", func(t *testing.T) {
			s := redistest.Start(t)
			pid = s.PID()
			s.Pause()
		})
		require.False(t, alive(pid))
	})

	t.Run("arguments override the defaults", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t, "--maxclients", "77", "--requirepass", "secret")
		rdb := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
		got, err := rdb.ConfigGet(ctx, "maxclients").Result()
		require.NoError(t, err)
		require.Equal(t, map[string]string{"maxclients": "77"}, got)
	})

	t.Run("DEBUG is allowed and nothing is written to disk", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		rdb := s.Client(t)
		require.NoError(t, rdb.Do(ctx, "debug", "sleep", "0").Err())
		got, err := rdb.ConfigGet(ctx, "save").Result()
		require.NoError(t, err)
		require.Equal(t, map[string]string{"save": ""}, got)
	})
}

func TestServer_Pause(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) {
		o.ReadTimeout = 50 * time.Millisecond
		o.MaxRetries = -1
	})
	require.NoError(t, rdb.Ping(ctx).Err())

	s.Pause()
	err := rdb.Ping(ctx).Err()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	s.Resume()
	require.NoError(t, s.Client(t).Ping(ctx).Err())
}

func TestServer_Restart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, tc := range map[string]struct {
		args []string
		want int64
	}{
		"without persistence the data is lost": {nil, 0},
		"with an append-only file it is kept":  {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, tc.args...)
			addr, pid := s.Addr(), s.PID()
			require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

			s.Kill()
			require.False(t, alive(pid))
			require.Error(t, s.Client(t, noRetries).Ping(ctx).Err())

			s.Restart(t)
			require.Equal(t, addr, s.Addr())
			require.NotEqual(t, pid, s.PID())
			n, err := s.Client(t).Exists(ctx, "k").Result()
			require.NoError(t, err)
			require.Equal(t, tc.want, n)
		})
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	require.Same(t, redistest.Shared(t), redistest.Shared(t))
	require.NoError(t, redistest.Shared(t).Client(t).Ping(t.Context()).Err())
	names := make(map[string]bool)
	for range 12 { // the twelfth number begins with the digit of the second
		name := redistest.Name(t)
		for i := range 12 {
			names[fmt.Sprint(name, i)] = true
		}
	}
	require.Len(t, names, 12*12)
	t.Run("replaces {braces} and * characters", func(t *testing.T) {
		require.Regexp(t, `^TestShared/replaces__braces__and___characters:\d+\.$`, redistest.Name(t))
	})
}

const childEnv = "REDISTEST_CHILD"

// A killed test binary leaves no server behind. A copy of this binary starts a server, prints its pid, and is
// killed.
func TestStart_ServerDiesWithTheTestBinary(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		fmt.Printf("server %d\n", redistest.Start(t).PID())
		<-t.Context().Done() // the parent kills this process first
		return
	}
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a child's life to its parent's")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir()) // the child cannot clean up
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscanf(out, "server %d\n", &pid)
	require.NoError(t, err)
	require.True(t, alive(pid))

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	deadline := time.After(10 * time.Second)
	for alive(pid) {
		select {
		case <-poll.C:
		case <-deadline:
			require.Fail(t, "the server outlived the test binary")
		}
	}
}

// alive reports whether a process that is not a zombie has this id.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !bytes.Contains(stat, []byte(") Z "))
}

func noRetries(o *redis.Options) { o.MaxRetries = -1 }

func TestServer_DeliverAnd(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	call := func(args ...string) (bytes []byte) {
		bytes = fmt.Appendf(nil, "*%d\r\n", len(args))
		for _, arg := range args {
			bytes = fmt.Appendf(bytes, "$%d\r\n%s\r\n", len(arg), arg)
		}
		return bytes
	}
	require.True(t, server.DeliverAnd(t, call("SET", name, "1"), name))
	require.False(t, server.DeliverAnd(t, call("DEL", name), name), "although DEL has the reply 1")
}
