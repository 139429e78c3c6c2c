// Package cogwheeltest is a Redis server in memory for unit tests of code that holds locks, waits for permits, asks
// limiters, or runs delayed tasks. A test can make a lock be lost, make time pass, and make the server hang, refuse, or
// fail to answer.
//
// The server is github.com/alicebob/miniredis. docs/testing.md lists what it does not prove.
//
// The package is a module of its own, so that the library does not require that server. It uses internal packages of
// the library: require the same version of both modules.
//
// # In a bubble
//
// A server is most useful in a bubble of testing/synctest. There time passes only when every goroutine waits,
// so a test of a lease of 30 seconds takes milliseconds and gives the same result each time:
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := cogwheeltest.Start(t)
//		err := restock(t.Context(), srv.Locks(), func(ctx context.Context) error {
//			srv.Steal("stock:42", time.Minute) // the lock has another holder from now on
//			<-ctx.Done()                       // the next renewal finds out
//			return ctx.Err()
//		})
//		require.ErrorIs(t, err, redislock.ErrLost)
//	})
//
// In a bubble, everything must be made in it: the server, the wheel and the clients of the library. So use
// [Server.Wheel], not wheel.Default, and [Server.Client], NewClient or Options, not an address. Close
// everything that the test makes itself; the test closes everything that the server made.
//
// # Outside of a bubble
//
// With [WithClock], the server, its wheel and everything on the wheel use a clock that the test moves, such as
// the Mock of github.com/benbjohnson/clock. Goroutines still take real time: after [Server.Advance] a test must
// wait for the effects. Without a clock, everything uses the time of the process.
//
// # Faults
//
//	the lock or the permit is gone          ExpireLock, Steal, ExpirePermits, Flush
//	the lease of a task ends                Isolate or Hang until then
//	the limit is used up                    Exhaust
//	a call was executed and not answered    DropReplies
//	a call is refused                       Refuse
//	the server hangs                        Hang, Resume
//	the server is down                      Stop, Restart
//	connections break                       Disconnect
//	a process crashes, or loses its network NewClient for that process, Isolate, Rejoin
//
// The library sees each fault as it would see it on a real server: a holder learns of a stolen lock at its next
// renewal, not earlier.
//
// # Without a test
//
// Embed starts a server for a program that shows something without a Redis, or for an Example. It is for trying out
// only.
package cogwheeltest
