// Package redistest gives tests a real Redis: throwaway redis-server processes
// on loopback, alone, as a Cluster or under Sentinel, and a dialer that loses,
// delays and cuts what a client sends.
//
// REDIS_SERVER names the server to run, redis-server or valkey-server of version
// 6.2 or later, by a path or a name on PATH. The default is redis-server.
//
// Every process belongs to one test, or to the test binary for [Shared] and
// [SharedCluster], and ends with it: at cleanup by its pid, and on Linux by a
// signal from the kernel if the test binary itself is killed. Processes are
// never looked up or ended by name.
//
// A package whose tests use Redis has this TestMain:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// and its tests begin with:
//
//	rdb := redistest.Shared(t).Client(t)
//	name := redistest.Name(t)
//
// A test that pauses, kills or reconfigures the server starts its own with
// [Start].
//
// With -short, tests that need a Cluster or Sentinel are skipped: starting one
// takes seconds. Other tests that take seconds call [SkipIfShort].
package redistest
