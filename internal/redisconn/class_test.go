package redisconn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Guarantees: Q19.
func TestClassify(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want, errs := range map[redisconn.Class][]error{
		redisconn.Answered: {nil, redis.Nil},
		redisconn.Unavailable: {
			io.EOF, redis.ErrPoolTimeout, redis.ErrPoolExhausted, context.DeadlineExceeded,
			&net.OpError{Op: "dial", Err: errors.New("connection refused")},
			&net.DNSError{Err: "no such host", IsNotFound: true},
			errors.New("redis: all sentinels specified in configuration are unreachable"),
			// What a Sentinel says that does not know the master is no answer to the call.
			fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", redis.Nil),
			answer(""), answer("BUSYGROUP of a stream"), answer("ERR subscription has ended"),
			answer("LOADING Redis is loading the dataset in memory"),
			answer("READONLY You can't write against a read only replica."),
			answer("MASTERDOWN Link with MASTER is down"),
			answer("CLUSTERDOWN The cluster is down"),
			answer("TRYAGAIN Multiple keys request during rehashing of slot"),
			answer("MOVED 1 127.0.0.1:7000"), answer("ASK 1 127.0.0.1:7000"),
			answer("OOM command not allowed when used memory > 'maxmemory'. script: c6a3, on @user_script:1."),
			answer("NOREPLICAS Not enough good replicas to write."),
			answer("MISCONF Redis is configured to save RDB snapshots"),
			answer("BUSY Redis is busy running a script."), answer("UNKILLABLE Sorry"),
			answer("ERR max number of clients reached"),
			answer("ERR Error running script (call to f_c6a3): @user_script:5: OOM command not allowed"),
			answer("ERR Error running script (call to f_c6a3): @user_script:5: @user_script: 5: Lua script attempted to execute a write command while the cluster is down and readonly"),
			answer("ERR Script attempted to execute a command while the cluster is down script: c6a3, on @user_script:1."),
		},
		redisconn.Misconfigured: {
			redis.ErrClosed,
			&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
			x509.HostnameError{},
			tls.RecordHeaderError{},
			answer("NOPERM this user has no permissions to run the 'evalsha' command"),
			answer("ERR The user executing the script can't run this command or subcommand script: c6a3, on @user_script:1."),
			answer("ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"),
			answer("ERR ACL failure in script: User u has no permissions to run the 'set' command script: c6a3, on @user_script:1."),
			answer("ERR Error running script (call to f_c6a3): @user_script: 1: NOPERM this user has no permissions"),
			answer("ERR unknown command 'EVALSHA', with args beginning with: "),
			answer("ERR Unknown Redis command called from script script: 9325"),
			answer("ERR DB index is out of range"),
			answer("DENIED Redis is running in protected mode"), answer("NOPROTO unsupported protocol version"),
			answer("CROSSSLOT Keys in request don't hash to the same slot"),
		},
		redisconn.KeyFault: {
			answer("WRONGTYPE Operation against a key holding the wrong kind of value script: 1298, on @user_script:1."),
			answer("WRONGKIND another kind of lock"),
			answer("ERR Error running script (call to f_1298): @user_script:3: WRONGTYPE Operation against a key"),
		},
		redisconn.LoginRefused: {
			answer("NOAUTH Authentication required."), answer("WRONGPASS invalid username-password pair or user is disabled."),
			answer("ERR invalid password"), answer("ERR Client sent AUTH, but no password is set"),
			answer("ERR AUTH <password> called without any password configured for the default user."),
			errors.New("redis: all sentinels specified in configuration are unreachable: WRONGPASS invalid"),
		},
		redisconn.Fault: {answer("NOTCONFIGURED no limit"), answer("ERR value is not an integer")},
	} {
		for _, err := range errs {
			require.Equal(t, want, redisconn.Classify(t.Context(), err), "%v", err)
			require.Equal(t, want, redisconn.Classify(context.Background(), err), "%v", err)
			if err == nil {
				continue
			}
			require.Equal(t, want, redisconn.Classify(t.Context(), fmt.Errorf("wrapped: %w", err)), "%v", err)
			if redisconn.Refused(err) {
				require.Equal(t, want, redisconn.Classify(ended, err), "an answer counts, whenever it comes: %v", err)
			} else {
				require.Equal(t, redisconn.ContextEnded, redisconn.Classify(ended, err), "%v", err)
			}
		}
	}
	require.Equal(t, "misconfigured", redisconn.Misconfigured.String())
	require.Equal(t, "fault", redisconn.Fault.String())
}

// What a real server and the client make of each state is sorted as the table says.
// Guarantees: Q19.
func TestClassify_OfARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx, admin := t.Context(), server.Client(t)
	write := redis.NewScript(`return redis.call('SET', KEYS[1], 1)`)
	class := func(rdb *redis.Client, script *redis.Script) redisconn.Class {
		return redisconn.Classify(ctx, script.Run(ctx, rdb, []string{"a"}).Err())
	}
	user := func(password string, rules ...any) *redis.Client {
		require.NoError(t, admin.Do(ctx, append([]any{"ACL", "SETUSER", "u", "reset", "on", ">secret"}, rules...)...).Err())
		return server.Client(t, func(o *redis.Options) { o.Username, o.Password = "u", password })
	}
	config := func(name, value string) { require.NoError(t, admin.ConfigSet(ctx, name, value).Err()) }

	require.Equal(t, redisconn.Answered, class(user("secret", "~*", "+@all"), write))
	require.Equal(t, redisconn.Misconfigured, class(user("secret", "~*", "+@all", "-set"), write), "a command within the script")
	require.Equal(t, redisconn.Misconfigured, class(user("secret", "~*", "+@all", "-eval", "-evalsha"), write), "the script itself")
	require.Equal(t, redisconn.Misconfigured, class(user("secret", "~b*", "+@all"), write), "the key")
	require.Equal(t, redisconn.LoginRefused, class(user("wrong", "~*", "+@all"), write))
	require.Equal(t, redisconn.Misconfigured, class(admin, redis.NewScript(`return redis.call('NOPE', KEYS[1])`)))
	for _, fault := range []string{
		`return redis.call('GET')`, `return nosuchfunction(KEYS[1])`, `return KEYS[1] .. nil`, `return nosuchglobal`, `not Lua`,
		`error('on purpose')`, `return redis.call('SET', KEYS[1], 1, 'PX', 'x')`, `return redis.call('EXPIRE', KEYS[1], 'x')`,
		`return redis.call('ZADD', KEYS[1], 'x', 'm')`,
	} {
		require.Equal(t, redisconn.Fault, class(admin, redis.NewScript(fault)), fault)
		require.NoError(t, admin.Del(ctx, "a").Err())
	}
	require.NoError(t, admin.LPush(ctx, "a", 1).Err())
	require.Equal(t, redisconn.KeyFault, class(admin, redis.NewScript(`return redis.call('GET', KEYS[1])`)))
	config("maxmemory", "1")
	require.Equal(t, redisconn.Unavailable, class(admin, write))
	config("maxmemory", "0")
	config("min-replicas-to-write", "1")
	require.Equal(t, redisconn.Unavailable, class(admin, write))
	config("min-replicas-to-write", "0")
	config("requirepass", "secret")
	require.Equal(t, redisconn.LoginRefused, class(server.Client(t), write), "NOAUTH")
	config("requirepass", "")
	hasty := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1 })
	require.NoError(t, hasty.Ping(ctx).Err())
	server.Pause()
	require.Equal(t, redisconn.Unavailable, class(hasty, write))
	server.Resume()
	server.Kill()
	require.Equal(t, redisconn.Unavailable, class(hasty, write))
	require.NoError(t, hasty.Close())
	require.Equal(t, redisconn.Misconfigured, class(hasty, write))
}

// Whichever way a server says it, a call that met a slot on the move is to be repeated.
func TestMigrating(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"ERR Script attempted to access a non local key in a cluster node script: c6a3":                                           true,
		"Lua script attempted to access a non local key in a cluster node":                                                        true, // Redis 6.2
		"ERR Error running script (call to f_1): @user_script:3: @user_script: 3: Lua script attempted to access a non local key": true,
		"ERR Unable to execute command 'mget' in script because undeclared keys were accessed during rehashing of the slot":       true, // 7.2
		"MOVED 1 127.0.0.1:7000": false,
		"WRONGTYPE Operation":    false,
	} {
		require.Equal(t, want, redisconn.Migrating(answer(text)), text)
		require.Equal(t, want, redisconn.Migrating(fmt.Errorf("wrapped: %w", answer(text))), text)
		require.Equal(t, want, redisconn.MayHaveExecuted(answer(text)), "the script may have written before: %s", text)
	}
	require.False(t, redisconn.Migrating(errors.New("attempted to access a non local key")), "no answer of a server")
}

// The table has what servers, proxies and services document, and texts that nobody has. An answer that is not known
// counts as an outage, and the call may have executed.
// Guarantees: Q19.
func TestClassify_Answers(t *testing.T) {
	t.Parallel()
	rows := redistest.Answers(t)
	unknown := 0
	for _, row := range rows {
		err := answer(row.Text)
		require.Equal(t, row.Class, redisconn.Classify(t.Context(), err).String(), row.Text)
		later := row.Class == "unavailable" || row.Class == "login refused"
		require.Equal(t, !later, redisconn.Permanent(err), row.Text)
		if redisconn.MayHaveExecuted(err) {
			require.Equal(t, "unavailable", row.Class, "a refusal that is known was not executed: %s", row.Text)
			unknown++
		}
	}
	require.Greater(t, unknown, 20)
	for _, executed := range []string{"upstream failure", "ERR server closed connection", "ERR redis temporary failure"} {
		require.True(t, redisconn.MayHaveExecuted(answer(executed)), executed)
	}
}

// Every error that a script raises on purpose is known, so that it never counts as an outage, which opens limits.
// Guarantees: Q19.
func TestClassify_ErrorsOfScripts(t *testing.T) {
	t.Parallel()
	raised := regexp.MustCompile(`redis\.error_reply\((?:[^']*and )?'([^']+)'(?: or '([^']+)')?`)
	found := 0
	for _, script := range scripts.All() {
		all := raised.FindAllStringSubmatch(script.Source(), -1)
		require.Len(t, all, strings.Count(script.Source(), "error_reply("), script.Name())
		for _, texts := range all {
			for _, text := range texts[1:] {
				if text == "" {
					continue
				}
				found++
				class := redisconn.Classify(t.Context(), answer(text))
				require.Contains(t, []redisconn.Class{redisconn.KeyFault, redisconn.Fault}, class, "%s: %s", script.Name(), text)
			}
		}
	}
	require.Greater(t, found, 20)
}

func TestEndurance(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	began := time.Now()
	outage, login, final := io.EOF, answer("WRONGPASS x"), answer("NOPERM x")
	var e redisconn.Endurance
	for i, c := range []struct {
		at   time.Duration
		err  error // nil: an answer
		want bool
	}{
		{0, outage, true},
		{time.Hour, outage, true},
		{time.Hour, login, true},
		{time.Hour + lease/2, outage, true},
		{time.Hour + lease - 1, login, true},
		{time.Hour + lease, login, false}, // it is no rotation of a password
		{time.Hour + lease, nil, true},
		{2 * time.Hour, login, true},
		{2 * time.Hour, final, false},
	} {
		if c.err == nil {
			e.Answered()
			continue
		}
		require.Equal(t, c.want, e.Endures(c.err, began.Add(c.at), lease), "%d: %v", i, c)
	}
	e.Answered()
	for _, seconds := range []float64{1, 2, 4, 8, 10, 10} {
		e.Endures(outage, began, lease)
		require.InDelta(t, seconds, e.Pause(time.Second, 10*time.Second).Seconds(), 0)
	}
}
