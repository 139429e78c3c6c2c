// Package cogwheeltest is a Redis server in memory for unit tests of code that holds locks, waits for permits, or
// asks limiters. A test can lose a lock on command, let time pass, and have the server hang, refuse, or fail to
// answer.
//
// # In a bubble
//
// Most useful is a server in a bubble of testing/synctest. There time passes only when every goroutine waits, so a
// test of a lease of 30 seconds takes milliseconds and gives the same result each time:
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
// Server.Wheel, not wheel.Default, and Server.Client, NewClient or Options, not an address. Close what the test
// makes itself; what the server made is closed with the test.
//
// # Outside of a bubble
//
// With WithClock, the server, its wheel and everything on the wheel live by a clock that the test moves, such as the
// Mock of github.com/benbjohnson/clock. Goroutines still take real time: after Server.Advance a test waits for what
// should follow. Without a clock, everything lives by the time of the process.
//
// # Faults
//
//	the lock or the permit is gone          ExpireLock, Steal, ExpirePermits, Flush
//	the limit is used up                    Exhaust
//	a call was executed and not answered    DropReplies
//	a call is refused                       Refuse
//	the server hangs                        Hang, Resume
//	the server is down                      Stop, Restart
//	connections break                       Disconnect
//	a process crashes, or loses its network NewClient for that process, Isolate, Rejoin
//
// Each is seen by the library as it would see it of a real server: a holder learns of a stolen lock at its next
// renewal, not earlier.
//
// The server is github.com/alicebob/miniredis. docs/testing.md says what it does not prove.
package cogwheeltest
