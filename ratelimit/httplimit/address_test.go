package httplimit_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

func TestByRemoteAddr(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.1:1234":          "192.0.2.1",
		"[::ffff:192.0.2.1]:1234": "192.0.2.1",
		"[2001:db8:1:2::7]:4321":  "2001:db8:1:2::",
		"[2001:db8:1:2:3::]:1":    "2001:db8:1:2::",
		"[fe80::1%eth0]:80":       "fe80::1%eth0",
		"192.0.2.1":               "192.0.2.1",
	} {
		key, limited := httplimit.ByRemoteAddr(&http.Request{RemoteAddr: addr})
		require.Equal(t, want, key)
		require.True(t, limited)
	}
	for _, addr := range []string{"@", "", "/run/app.sock", "pipe"} {
		_, limited := httplimit.ByRemoteAddr(&http.Request{RemoteAddr: addr})
		require.False(t, limited, addr)
	}
}

// An address that a translator or a tunnel makes of an IPv4 address counts as that: else all of IPv4 is one network, or
// a host has thousands of them.
// Guarantees: Q25.
func TestByRemoteAddr_IPv4InsideIPv6(t *testing.T) {
	t.Parallel()
	wide := httplimit.ByAddress(httplimit.Address{IPv4Bits: 24, IPv6Bits: 128})
	for addr, want := range map[string][2]string{ // the keys of ByRemoteAddr, and of networks
		"64:ff9b::192.0.2.1":                     {"192.0.2.1", "192.0.2.0"},
		"64:ff9b::c000:202":                      {"192.0.2.2", "192.0.2.0"},
		"64:ff9b:0:0:0:1:c000:201":               {"64:ff9b::", "64:ff9b::1:c000:201"}, // not of the /96
		"64:ff9b:1::192.0.2.1":                   {"64:ff9b:1::c000:201", "64:ff9b:1::c000:201"},
		"64:ff9b:1:c000:2:100::":                 {"64:ff9b:1:c000:2:100::", "64:ff9b:1:c000:2:100::"},
		"64:ff9b:2::192.0.2.1":                   {"64:ff9b:2::", "64:ff9b:2::c000:201"},
		"::ffff:0:192.0.2.1":                     {"192.0.2.1", "192.0.2.0"},
		"::ffff:192.0.2.1":                       {"192.0.2.1", "192.0.2.0"},
		"::1":                                    {"::", "::1"},
		"2002:c000:201::1":                       {"2002:c000:201::", "2002:c000:200::"},
		"2002:c000:201:ffff::1":                  {"2002:c000:201::", "2002:c000:200::"},
		"2001:0:4136:e378:8000:63bf:3fff:fdfe":   {"2001::c000:201", "2001::c000:200"}, // by one server and port
		"2001:0:cb00:7101:0:ffff:3fff:fdfe":      {"2001::c000:201", "2001::c000:200"}, // by others
		"2001:0:4136:e378:8000:63bf:3fff:fcfe":   {"2001::c000:301", "2001::c000:300"},
		"2001:db8:4136:e378:8000:63bf:3fff:fdfe": {"2001:db8:4136:e378::", "2001:db8:4136:e378:8000:63bf:3fff:fdfe"},
	} {
		r := &http.Request{RemoteAddr: net.JoinHostPort(addr, "1234")}
		key, limited := httplimit.ByRemoteAddr(r)
		require.Equal(t, want[0], key, addr)
		require.True(t, limited)
		key, _ = wide(r)
		require.Equal(t, want[1], key, addr)
	}

	// A proxy is trusted by the address that connects, not by an address inside of it.
	proxies := httplimit.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
	key, _ := proxies(&http.Request{RemoteAddr: "[64:ff9b::10.0.0.1]:1", Header: http.Header{"X-Forwarded-For": {"192.0.2.1"}}})
	require.Equal(t, "10.0.0.1", key)
}

// Guarantees: Q25.
func TestByForwarded(t *testing.T) {
	t.Parallel()
	key := httplimit.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48"),
		netip.MustParsePrefix("::ffff:172.16.0.0/108"))
	for what, c := range map[string]struct {
		peer  string
		field []string
		want  string
	}{
		"a client that connects itself":               {"192.0.2.1:1", nil, "192.0.2.1"},
		"a client that names another":                 {"192.0.2.1:1", []string{"198.51.100.7"}, "192.0.2.1"},
		"a client behind a proxy":                     {"10.0.0.1:1", []string{"198.51.100.7"}, "198.51.100.7"},
		"an IPv6 client behind a proxy":               {"[2001:db8:ffff::1]:1", []string{"2001:db8:1:2::7"}, "2001:db8:1:2::"},
		"a client behind a proxy that names another":  {"10.0.0.1:1", []string{"203.0.113.9, 198.51.100.7"}, "198.51.100.7"},
		"in a field of its own":                       {"10.0.0.1:1", []string{"203.0.113.9", "198.51.100.7"}, "198.51.100.7"},
		"a chain of proxies":                          {"10.0.0.1:1", []string{"203.0.113.9,198.51.100.7,10.0.0.3 , 172.16.0.2"}, "198.51.100.7"},
		"a client that names a proxy":                 {"10.0.0.1:1", []string{"10.0.0.9, 198.51.100.7"}, "198.51.100.7"},
		"with a port":                                 {"10.0.0.1:1", []string{"198.51.100.7:4711"}, "198.51.100.7"},
		"with a port, IPv6":                           {"10.0.0.1:1", []string{"[2001:db8:1:2::7]:4711"}, "2001:db8:1:2::"},
		"an IPv4 proxy on a dual-stack socket":        {"[::ffff:10.0.0.1]:1", []string{"198.51.100.7"}, "198.51.100.7"},
		"a proxy that names no client":                {"10.0.0.1:1", nil, "10.0.0.1"},
		"an empty field":                              {"10.0.0.1:1", []string{""}, "10.0.0.1"},
		"nonsense":                                    {"10.0.0.1:1", []string{"198.51.100.7, unknown"}, "10.0.0.1"},
		"nonsense before what a proxy wrote":          {"10.0.0.1:1", []string{"unknown, 10.0.0.2"}, "10.0.0.2"},
		"only proxies":                                {"10.0.0.1:1", []string{"10.0.0.2, 10.0.0.3"}, "10.0.0.2"},
		"a proxy on a Unix socket":                    {"@", []string{"198.51.100.7"}, "198.51.100.7"},
		"a proxy on a Unix socket, of a client's lie": {"@", []string{"203.0.113.9, 198.51.100.7"}, "198.51.100.7"},
		"a Unix socket without a field":               {"@", nil, ""},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.field, "Forwarded": {"for=203.0.113.1"}}}
		got, limited := key(r)
		require.Equal(t, c.want, got, what)
		require.True(t, limited, what)
	}
}

// Guarantees: Q25.
func TestByAddress_Forwarded(t *testing.T) {
	t.Parallel()
	key := httplimit.ByAddress(httplimit.Address{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Field: "forwarded"})
	const client = "198.51.100.7"
	for what, c := range map[string]struct {
		field []string
		want  string
	}{
		"a client":                          {[]string{"for=198.51.100.7"}, client},
		"with other parameters":             {[]string{`by=10.0.0.1; For="198.51.100.7:4711" ;proto=https;host="a, b;c"`}, client},
		"an IPv6 client":                    {[]string{`for="[2001:db8:1:2::7]:4711"`}, "2001:db8:1:2::"},
		"a client that names another":       {[]string{"for=203.0.113.9, for=198.51.100.7"}, client},
		"in a field of its own":             {[]string{"for=203.0.113.9", "for=198.51.100.7"}, client},
		"a chain of proxies":                {[]string{`for=198.51.100.7;by=10.0.0.1,for="10.0.0.3:1"`}, client},
		"an escaped quote":                  {[]string{`host="a\", for=203.0.113.9";for=198.51.100.7`}, client},
		"none":                              {nil, "10.0.0.1"},
		"an element without":                {[]string{"for=198.51.100.7, proto=https"}, "10.0.0.1"},
		"unknown":                           {[]string{"for=198.51.100.7, for=unknown"}, "10.0.0.1"},
		"hidden":                            {[]string{"for=198.51.100.7, for=_gazonk"}, "10.0.0.1"},
		"a quote that a client opens":       {[]string{`for="203.0.113.9`, "for=198.51.100.7"}, client},
		"and that the proxy's quote closes": {[]string{`for="203.0.113.9`, `for="198.51.100.7:1"`}, client},
		"both in one line":                  {[]string{`for="203.0.113.9, for="198.51.100.7:1"`}, client},
		"a quote and a backslash":           {[]string{`for="203.0.113.9\, for="198.51.100.7:1"`}, client},
		"a backslash at the end":            {[]string{`for="198.51.100.7\`}, "10.0.0.1"},
		"no parameter":                      {[]string{"198.51.100.7"}, "10.0.0.1"},
		"another field":                     {[]string{}, "10.0.0.1"},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": c.field, "X-Forwarded-For": {"203.0.113.1"}}}
		got, limited := key(r)
		require.Equal(t, c.want, got, what)
		require.True(t, limited, what)
		r.RemoteAddr = "192.0.2.1:1"
		got, _ = key(r)
		require.Equal(t, "192.0.2.1", got, "a client that connects itself is not believed: %s", what)
	}
}

// Guarantees: Q25.
func TestByAddress_OneAddress(t *testing.T) {
	t.Parallel()
	key := httplimit.ByAddress(httplimit.Address{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Field: "X-Real-IP"})
	for want, field := range map[string][]string{
		"198.51.100.7":   {"198.51.100.7"},
		"2001:db8:1:2::": {"2001:db8:1:2::7"},
	} {
		got, _ := key(&http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Real-Ip": field}})
		require.Equal(t, want, got)
		got, _ = key(&http.Request{RemoteAddr: "192.0.2.1:1", Header: http.Header{"X-Real-Ip": field}})
		require.Equal(t, "192.0.2.1", got)
	}
	for _, field := range [][]string{nil, {""}, {"x"}, {"198.51.100.7, 198.51.100.8"}, {"198.51.100.7", "198.51.100.8"}} {
		got, _ := key(&http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Real-Ip": field}})
		require.Equal(t, "10.0.0.1", got, field)
	}
}

// Guarantees: Q25.
func TestByAddress_Groups(t *testing.T) {
	t.Parallel()
	key := httplimit.ByAddress(httplimit.Address{IPv4Bits: 24, IPv6Bits: 48})
	for addr, want := range map[string]string{
		"192.0.2.1:1234":         "192.0.2.0",
		"[2001:db8:1:2::7]:4321": "2001:db8:1::",
		"[fe80::1%eth0]:80":      "fe80::1%eth0",
	} {
		got, limited := key(&http.Request{RemoteAddr: addr})
		require.Equal(t, want, got)
		require.True(t, limited)
	}
	for _, bad := range []httplimit.Address{
		{IPv4Bits: 33}, {IPv4Bits: -1}, {IPv6Bits: 129}, {IPv6Bits: -1}, {Field: "a b"}, {Field: "a:"}, {Trusted: []netip.Prefix{{}}},
	} {
		require.Panics(t, func() { httplimit.ByAddress(bad) }, "%+v", bad)
	}
}

// What a client writes before what the proxy appends never chooses the key: it is the client's address.
// Guarantees: Q25.
func FuzzByAddress_Forwarded(f *testing.F) {
	f.Add("for=198.51.100.7")
	f.Add(`for="`)
	f.Add(`for="a\`)
	f.Add(`for=a;for="`)
	f.Fuzz(func(t *testing.T, lie string) {
		key := httplimit.ByAddress(httplimit.Address{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Field: "Forwarded"})
		for _, appended := range []string{"for=192.0.2.1", `for="192.0.2.1:4711"`, `proto=http;for=192.0.2.1;by=10.0.0.1`} {
			for _, lines := range [][]string{{lie, appended}, {lie + ", " + appended}} {
				got, limited := key(&http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": lines}})
				require.True(t, limited)
				require.Equal(t, "192.0.2.1", got)
			}
		}
	})
}

// A client may send as much as the server accepts, which is a megabyte by default.
func TestByAddress_DoesNotReadWhatAClientHasSent(t *testing.T) {
	for field, proxy := range map[string]string{"X-Forwarded-For": "198.51.100.7", "Forwarded": `for="198.51.100.7:1"`} {
		key := httplimit.ByAddress(httplimit.Address{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Field: field})
		long := strings.Repeat("for=10.0.0.1, ", 70_000)
		for _, lines := range [][]string{{long, proxy}, {long + proxy}} {
			r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{field: lines}}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			before := m.TotalAlloc
			for range 100 {
				got, _ := key(r)
				require.Equal(t, "198.51.100.7", got)
			}
			runtime.ReadMemStats(&m)
			require.Less(t, m.TotalAlloc-before, uint64(100_000), "bytes for a hundred requests")
		}
	}
}

// Behind a proxy on a Unix socket each client has a limit of its own.
// Guarantees: Q25.
func TestByForwarded_OnAUnixSocket(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	k := c.Limiter(redistest.Name(t), ratelimit.PerHour(2))
	server := &http.Server{Handler: httplimit.New(k, httplimit.ByForwarded())(ok)} //nolint:gosec // a test
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer func() {
		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	}()
	for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
		for _, want := range []int{http.StatusNoContent, http.StatusNoContent, http.StatusTooManyRequests} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://unix/", nil)
			require.NoError(t, err)
			r.Header.Set("X-Forwarded-For", client)
			res, err := transport.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, want, res.StatusCode, client)
		}
	}
}

// No header gets a client another key than that of the address that connects, unless a proxy is trusted.
// Guarantees: Q25.
func FuzzByForwarded(f *testing.F) {
	f.Add("198.51.100.7", "10.0.0.1")
	f.Add("unknown,,", "[::1]:1, 10.1.2.3")
	f.Fuzz(func(t *testing.T, first, second string) {
		key := httplimit.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
		header := http.Header{"X-Forwarded-For": {first, second}}
		got, limited := key(&http.Request{RemoteAddr: "192.0.2.1:1", Header: header})
		require.True(t, limited)
		require.Equal(t, "192.0.2.1", got)
		header["X-Forwarded-For"] = append(header["X-Forwarded-For"], "198.51.100.7")
		got, limited = key(&http.Request{RemoteAddr: "10.0.0.1:1", Header: header})
		require.True(t, limited)
		require.Equal(t, "198.51.100.7", got, "what the proxy appended")
	})
}
