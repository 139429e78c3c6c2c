package grpclimit_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/contrib/grpclimit"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

var check = &grpc_health_v1.HealthCheckRequest{}

func interceptors(s *grpclimit.Server) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(s.Unary), grpc.StreamInterceptor(s.Stream)}
}

// as is a context of a call of a user.
func as(t *testing.T, user string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), "User", user)
}

func TestServer_Unary(t *testing.T) {
	t.Parallel()
	name := redistest.Name(t)
	k := limits(t, redistest.Shared(t).Client(t)).Limiter("grpc"+name, ratelimit.PerMinute(2))
	client := dial(t, interceptors(grpclimit.New(k, grpclimit.ByMetadata("User"), grpclimit.WithFields())))
	var header metadata.MD
	for left := range 2 {
		_, err := client.Check(as(t, "ada"), check, grpc.Header(&header))
		require.NoError(t, err)
		require.Equal(t, []string{"2"}, header["x-ratelimit-limit"])
		require.Equal(t, []string{[]string{"1", "0"}[left]}, header["x-ratelimit-remaining"])
		require.Equal(t, []string{[]string{"30", "60"}[left]}, header["x-ratelimit-reset"])
		require.Empty(t, header["retry-after"])
	}
	_, err := client.Check(as(t, "ada"), check, grpc.Header(&header))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	after, denied := grpclimit.RetryAfter(err)
	require.True(t, denied)
	require.Greater(t, after, 10*time.Second)
	require.LessOrEqual(t, after, 31*time.Second)
	require.Equal(t, []string{"0"}, header["x-ratelimit-remaining"])
	require.NotEmpty(t, header["retry-after"])
	_, err = client.Check(as(t, "bob"), check)
	require.NoError(t, err, "another user has a limit of its own")
	_, denied = grpclimit.RetryAfter(errors.New("another error"))
	require.False(t, denied)
}

func TestServer_Stream(t *testing.T) {
	t.Parallel()
	k := limits(t, redistest.Shared(t).Client(t)).Limiter("grpc"+redistest.Name(t), ratelimit.PerMinute(1))
	client := dial(t, interceptors(grpclimit.New(k, grpclimit.ByMethod)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Watch(ctx, check)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	denied, err := client.Watch(ctx, check)
	require.NoError(t, err)
	_, err = denied.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, says := grpclimit.RetryAfter(err)
	require.True(t, says)
	header, err := denied.Header()
	require.NoError(t, err)
	require.Empty(t, header["x-ratelimit-limit"], "by default there are no fields")
	_, err = client.Check(t.Context(), check)
	require.NoError(t, err, "another method")
}

// Permits used under one plan count under the next, and f is called once for each call.
// Guarantees: Q27.
func TestServer_ATenantWhosePlanChanges(t *testing.T) {
	t.Parallel()
	c, name := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	var plan ratelimit.Limit
	lookups := 0
	server := grpclimit.NewPerKey(c.Limiter("grpc"+name, ratelimit.PerHour(1)), func(ctx context.Context, _ string) (string, ratelimit.Limit, bool) {
		lookups++
		tenant := metadata.ValueFromIncomingContext(ctx, "user")[0]
		if tenant != "ada" {
			return tenant, ratelimit.PerHour(1), tenant != "exempt"
		}
		return tenant, plan, true
	}, grpclimit.WithFields())
	client := dial(t, interceptors(server))
	var header metadata.MD
	call := func(tenant string) codes.Code {
		header = nil
		_, err := client.Check(as(t, tenant), check, grpc.Header(&header))
		return status.Code(err)
	}
	plan = ratelimit.PerHour(4)
	require.Equal(t, codes.OK, call("ada"))
	require.Equal(t, codes.OK, call("ada"))
	plan = ratelimit.PerHour(2)
	require.Equal(t, codes.OK, call("ada"), "half of two is left")
	require.Equal(t, []string{"2"}, header["x-ratelimit-limit"])
	require.Equal(t, codes.ResourceExhausted, call("ada"))
	plan = ratelimit.PerDay(100)
	require.Equal(t, codes.OK, call("ada"), "the denial was one of the other plan")
	require.Equal(t, []string{"100"}, header["x-ratelimit-limit"])
	plan = ratelimit.PerDay(0) // blocked
	require.Equal(t, codes.ResourceExhausted, call("ada"))
	require.Empty(t, header["retry-after"])
	_, err := client.Check(as(t, "ada"), check)
	_, ok := grpclimit.RetryAfter(err)
	require.False(t, ok)
	plan = ratelimit.Limit{Rate: 1}
	require.Equal(t, codes.Unavailable, call("ada"), "a limit without a period")
	plan = ratelimit.Limit{}
	require.Equal(t, codes.Unavailable, call("ada"), "a row that is missing admits nobody")
	require.Equal(t, codes.OK, call("bob"), "the limit of the Limiter")
	require.Equal(t, codes.ResourceExhausted, call("bob"))
	for range 3 {
		require.Equal(t, codes.OK, call("exempt"))
	}
	require.Equal(t, 14, lookups, "one for each call")
}

func TestServer_SeveralLimits(t *testing.T) {
	t.Parallel()
	c, name := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	users, methods := c.Limiter("user"+name, ratelimit.PerMinute(2)), c.Limiter("method"+name, ratelimit.PerMinute(3))
	server := grpclimit.NewAll(c, func(ctx context.Context, method string) []ratelimit.Part {
		user := metadata.ValueFromIncomingContext(ctx, "user")
		if len(user) == 0 {
			return nil
		}
		return []ratelimit.Part{users.Part(user[0]), methods.Part(method)}
	})
	client := dial(t, interceptors(server))
	for _, call := range []struct {
		user string
		want codes.Code
	}{
		{"ada", codes.OK},
		{"ada", codes.OK},
		{"ada", codes.ResourceExhausted},
		{"ada", codes.ResourceExhausted},
		{"bob", codes.OK},
		{"bob", codes.ResourceExhausted},
	} {
		_, err := client.Check(as(t, call.user), check)
		require.Equal(t, call.want, status.Code(err), call.user)
	}
	_, err := client.Check(t.Context(), check)
	require.NoError(t, err, "not limited")
	r, err := users.Peek(t.Context(), "bob")
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Remaining, "what the method denied, the user was not charged for")
}

// A limit with WithShadow refuses no call.
func TestServer_Shadow(t *testing.T) {
	t.Parallel()
	name := "grpc" + redistest.Name(t)
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter(name, ratelimit.PerMinute(1), ratelimit.WithShadow())
	client := dial(t, interceptors(grpclimit.New(k, grpclimit.ByMetadata("User"), grpclimit.WithFields())))
	for _, would := range [][]string{nil, {"true"}, {"true"}} {
		var header metadata.MD
		_, err := client.Check(as(t, "ada"), check, grpc.Header(&header))
		require.NoError(t, err)
		require.Equal(t, would, header["x-ratelimit-would-deny"])
		require.Empty(t, header["x-ratelimit-remaining"], "a client does not obey a limit on trial")
		require.Empty(t, header["retry-after"])
	}
	dear := grpclimit.New(k, grpclimit.ByMetadata("User"), grpclimit.WithFields(),
		grpclimit.WithCost(func(context.Context, string) int64 { return 2 }))
	var header metadata.MD
	_, err := dial(t, interceptors(dear)).Check(as(t, "ada"), check, grpc.Header(&header))
	require.NoError(t, err, "a cost above the burst")
	require.Equal(t, []string{"true"}, header["x-ratelimit-would-deny"])
	require.Empty(t, header["x-ratelimit-limit"], "the counts are not known")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits := grpclimit.NewClient(k, grpclimit.ByMethod)
	require.NoError(t, waits.Unary(ctx, "/a", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		return nil
	}))
	_, err = waits.Stream(ctx, nil, nil, "/a", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return nil, nil //nolint:nilnil // it is not used
	})
	require.NoError(t, err, "it does not wait")
}

// A handler settles the permits that its call has reserved.
func TestServer_AHandlerSettlesItsReservation(t *testing.T) {
	t.Parallel()
	name := "grpc" + redistest.Name(t)
	c := limits(t, redistest.Shared(t).Client(t))
	limiter := func(suffix string) *ratelimit.Limiter { return c.Limiter(name+suffix, ratelimit.PerDay(10)) }
	cost := grpclimit.WithCost(func(context.Context, string) int64 { return 5 })
	settle := func(ctx context.Context, limits int) {
		r := ratelimit.ReservationFromContext(ctx)
		require.NotNil(t, r)
		require.NoError(t, r.Settle(context.WithoutCancel(ctx), slices.Repeat([]int64{2}, limits)...))
	}
	for what, s := range map[string]*grpclimit.Server{
		"New": grpclimit.New(limiter("new"), grpclimit.ByMetadata("User"), cost, grpclimit.WithReservation()),
		"NewPerKey": grpclimit.NewPerKey(limiter("plan"), func(context.Context, string) (string, ratelimit.Limit, bool) {
			return "ada", limiter("plan").Limit(), true
		}, cost, grpclimit.WithReservation()),
		"NewAll": grpclimit.NewAll(c, func(context.Context, string) []ratelimit.Part {
			return []ratelimit.Part{limiter("all").Part("ada"), limiter("all2").Part("ada")}
		}, cost, grpclimit.WithReservation()),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			of := 1
			if what == "NewAll" {
				of = 2
			}
			client := dial(t, []grpc.ServerOption{
				grpc.ChainUnaryInterceptor(s.Unary, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
					settle(ctx, of)
					return next(ctx, req)
				}),
				grpc.ChainStreamInterceptor(s.Stream, func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
					settle(ss.Context(), of)
					return next(srv, ss)
				}),
			})
			ctx, cancel := context.WithCancel(as(t, "ada"))
			defer cancel()
			for range 2 {
				_, err := client.Check(ctx, check)
				require.NoError(t, err)
			}
			stream, err := client.Watch(ctx, check)
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)
			_, err = client.Check(ctx, check)
			require.Equal(t, codes.ResourceExhausted, status.Code(err), "4 are left, not 5")
		})
	}
}

// The error of a denied call can tell which limit has denied it, and when the next one is granted.
func TestServer_DeniedKnowsTheDecision(t *testing.T) {
	t.Parallel()
	c, name := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	wide, narrow := c.Limiter("wide"+name, ratelimit.PerMinute(9)), c.Limiter("narrow"+name, ratelimit.PerMinute(1))
	var got []ratelimit.Result
	custom := true
	denied := grpclimit.WithDenied(func(_ context.Context, method string, r ratelimit.Result) error {
		if got = append(got, r); custom {
			return status.Error(codes.PermissionDenied, method)
		}
		return nil
	})
	client := dial(t, interceptors(grpclimit.NewAll(c, func(context.Context, string) []ratelimit.Part {
		return []ratelimit.Part{wide.Part("ada"), narrow.Part("ada")}
	}, denied)))
	_, err := client.Check(t.Context(), check)
	require.NoError(t, err)
	_, err = client.Check(t.Context(), check)
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.Contains(t, err.Error(), method)
	require.Len(t, got, 1)
	require.Greater(t, got[0].RetryAfter, 30*time.Second)
	require.True(t, got[0].Parts[0].Allowed)
	require.False(t, got[0].Parts[1].Allowed)
	custom = false
	_, err = client.Check(t.Context(), check)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "nil is no grant")
	_, says := grpclimit.RetryAfter(err)
	require.True(t, says)

	dear := grpclimit.WithCost(func(context.Context, string) int64 { return 2 })
	_, err = dial(t, interceptors(grpclimit.New(narrow, grpclimit.ByMethod, denied, dear))).Check(t.Context(), check)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Zero(t, got[2].RetryAfter)
}

func TestServer_Costs(t *testing.T) {
	t.Parallel()
	k := limits(t, redistest.Shared(t).Client(t)).Limiter("grpc"+redistest.Name(t), ratelimit.PerMinute(5))
	costs := map[string]int64{"free": 0, "dear": 3, "never": 6}
	client := dial(t, interceptors(grpclimit.New(k, grpclimit.ByMethod, grpclimit.WithCost(func(ctx context.Context, _ string) int64 {
		return costs[metadata.ValueFromIncomingContext(ctx, "user")[0]]
	}))))
	for range 10 {
		_, err := client.Check(as(t, "free"), check)
		require.NoError(t, err)
	}
	_, err := client.Check(as(t, "never"), check)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, denied := grpclimit.RetryAfter(err)
	require.False(t, denied, "what costs more than the burst never comes")
	_, err = client.Check(as(t, "dear"), check)
	require.NoError(t, err)
	_, err = client.Check(as(t, "dear"), check)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestServer_RedisDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	down := func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }
	closed := limits(t, server.Client(t, down)).Limiter("k", ratelimit.PerMinute(2))
	open := limits(t, server.Client(t, down), ratelimit.WithPolicy(ratelimit.FailOpen())).Limiter("k", ratelimit.PerMinute(2))
	server.Kill()
	_, err := dial(t, interceptors(grpclimit.New(closed, grpclimit.ByMethod))).Check(t.Context(), check)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotContains(t, err.Error(), "127.0.0.1", "clients are not told where Redis is")
	var header metadata.MD
	client := dial(t, interceptors(grpclimit.New(open, grpclimit.ByMethod, grpclimit.WithFields())))
	for range 5 {
		_, err = client.Check(t.Context(), check, grpc.Header(&header))
		require.NoError(t, err)
		require.Empty(t, header["x-ratelimit-limit"], "the counts are not known")
	}
	var told error
	serve := grpclimit.WithFailed(func(_ context.Context, _ string, err error) error { told = err; return nil })
	_, err = dial(t, interceptors(grpclimit.New(closed, grpclimit.ByMethod, serve))).Check(t.Context(), check)
	require.NoError(t, err)
	require.ErrorIs(t, told, ratelimit.ErrUnavailable)
}

// A share can need more time for a call than any clock counts.
func TestServer_LongTimesDoNotOverflow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }),
		ratelimit.WithPolicy(ratelimit.LocalShare(100_000)))
	server.Kill()
	k := c.Limiter("long", ratelimit.Limit{Rate: 1, Per: ratelimit.MaxPer, Burst: 10})
	dear := grpclimit.WithCost(func(context.Context, string) int64 { return 10 })
	var header metadata.MD
	_, err := dial(t, interceptors(grpclimit.New(k, grpclimit.ByMethod, dear, grpclimit.WithFields()))).
		Check(t.Context(), check, grpc.Header(&header))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, []string{"3153600000"}, header["retry-after"])
	after, denied := grpclimit.RetryAfter(err)
	require.True(t, denied)
	require.Equal(t, 10*ratelimit.MaxPer, after)
}

// Guarantees: Q25.
func TestByPeer(t *testing.T) {
	t.Parallel()
	tcp := func(addr string) net.Addr { a, _ := net.ResolveTCPAddr("tcp", addr); return a }
	for addr, want := range map[net.Addr]string{
		tcp("192.0.2.1:1"):            "192.0.2.1",
		tcp("[::ffff:192.0.2.1]:1"):   "192.0.2.1",
		tcp("[2001:db8:1:2::7]:1"):    "2001:db8:1:2::",
		named("[2001:db8:1:2::8]:1"):  "2001:db8:1:2::",
		named("[fe80::1%eth0]:1"):     "fe80::1%eth0",
		&net.UnixAddr{Name: "/run/s"}: "",
		tcp("[64:ff9b::c000:202]:1"):  "192.0.2.2",
		tcp("[2002:c000:201:9::1]:1"): "2002:c000:201::",
		named("bufconn"):              "",
		net.Addr((*net.TCPAddr)(nil)): "",
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
		key, limited := grpclimit.ByPeer(ctx, method)
		require.Equal(t, want, key)
		require.Equal(t, want != "", limited)
	}
	_, limited := grpclimit.ByPeer(t.Context(), method)
	require.False(t, limited)
}

// named is an address of a transport that has a text only.
type named string

func (named) Network() string  { return "other" }
func (n named) String() string { return string(n) }

func TestByMetadata(t *testing.T) {
	t.Parallel()
	key := grpclimit.ByMetadata("User")
	for _, c := range []struct {
		values []string
		want   string
	}{{[]string{"ada"}, "ada"}, {nil, ""}, {[]string{"ada", "bob"}, ""}} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"user": c.values})
		got, limited := key(ctx, method)
		require.Equal(t, c.want, got)
		require.True(t, limited, "a call that leaves it out is limited all the same")
	}
}

// onlyAllows is a Limiter without TryReserve.
type onlyAllows struct{ grpclimit.Limiter }

// Guarantees: A1.
func TestNew_RefusesWhatCouldOnlyFailLater(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter("k", ratelimit.PerMinute(2))
	plan := func(context.Context, string) (string, ratelimit.Limit, bool) { return "", ratelimit.Limit{}, true }
	for _, f := range []func(){
		func() { grpclimit.New(nil, grpclimit.ByPeer) },
		func() { grpclimit.New(k, nil) },
		func() { grpclimit.New(onlyAllows{k}, grpclimit.ByPeer, grpclimit.WithReservation()) },
		func() { grpclimit.New(k, grpclimit.ByPeer, nil) },
		func() { grpclimit.New(c.Limiter("", ratelimit.Limit{}), grpclimit.ByPeer) },
		func() { grpclimit.NewAll(nil, func(context.Context, string) []ratelimit.Part { return nil }) },
		func() { grpclimit.NewAll(c, nil) },
		func() { grpclimit.NewPerKey(k, nil) },
		func() { grpclimit.NewPerKey(nil, plan) },
		func() { grpclimit.NewPerKey(c.Limiter("", ratelimit.Limit{}), plan) },
		func() { grpclimit.WithCost(nil) },
		func() { grpclimit.WithDenied(nil) },
		func() { grpclimit.WithFailed(nil) },
		func() { grpclimit.NewClient(nil, grpclimit.ByMethod) },
		func() { grpclimit.NewClient(k, nil) },
		func() { grpclimit.NewClient(c.Limiter("", ratelimit.Limit{}), grpclimit.ByMethod) },
	} {
		func() {
			defer func() {
				err, ok := recover().(error)
				require.True(t, ok)
				require.ErrorIs(t, err, cogwheel.ErrInvalid)
			}()
			f()
		}()
	}
}
