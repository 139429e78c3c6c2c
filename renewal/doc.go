// Package renewal keeps leases alive, and tells their holders when they are over.
//
// A lease is anything that a server grants for a limited time and prolongs on request: a lock in Redis, a
// permit, a session. Its holder has two jobs. It must renew the lease well before it ends, again and again,
// through lost replies and servers that hang. And when the lease cannot be renewed, the holder must stop
// before the lease ends on the server. A [Renewer] does both for many leases at once.
//
// # What it promises
//
//   - A lease counts from the instant before its request was sent, less a margin, which is the sum of one
//     percent of the lease for clocks of different rates, one tick of the wheel, and, for a process that is
//     delayed, a tenth of the lease or 50 ms, whichever is less. The server's own expiry is later than that
//     deadline, however long request and reply each took.
//   - Elapsed time counts suspend and ignores steps of the wall clock. The monotonic clock measures it. Where
//     the wall clock has moved against it, the boot clock tells a suspend from a step. If the wall clock
//     alone was set ahead by more than the margin, the Renewer renews its leases at once, and the answers
//     decide whether they are held: the step may be the correction after a pause of the virtual machine that
//     no other clock has counted. A system other than Linux, macOS, Windows and OpenBSD has no boot clock
//     that is known to count suspend; there, a wall clock that is set ahead counts as elapsed time.
//   - At the deadline the lease is lost, even while a renewal is in flight: [Lease.Done] closes, [Lease.Err]
//     says why, and no later success revives it.
//   - A lease that the server has ended early, because its key was deleted say, is lost at the next renewal,
//     within a third of the TTL.
//   - A renewal that fails is retried after about a twentieth of the lease until the deadline. Only an answer
//     that the lease is gone ends it sooner.
//   - After [Lease.Close] no further call carries the lease, and answers still on their way are ignored.
//   - A destination that hangs delays no other.
//
// # What it does not promise
//
// A process that does not run cannot be notified. A holder that was suspended past its deadline finds
// [Lease.Valid] false as soon as it wakes; Done closes soon after a call of Valid or when the next lease falls
// due, whichever is first. A pause of the virtual machine that no clock has counted is noticed when the wall
// clock is corrected, and not for a lease of Watch, which is never renewed. Work that must not overlap with a
// successor's checks a fencing token where the work takes effect.
//
// # Watching it
//
// [Renewer.Stats] counts renewals, losses, and calls to backends with how long they took. [WithHooks] reports
// them one by one. Failures of calls precede losses: a call that fails is retried until the deadline.
//
// # Cost
//
// A held lease costs one entry on the wheel, about 270 bytes, and no goroutine. Leases due within a hundredth
// of their TTL (at most 300 ms) share calls of up to 500 leases; renewals are spread at random, so the load
// is even. At most four calls per destination are in flight; their goroutines end when nothing has been due
// for a second or two. Ten thousand leases of 30 s cost about forty calls every ten seconds.
//
// # Example
//
//	r, err := renewal.New(wheel.Default())
//	...
//	nodes, err := r.Destination(backend) // backend sends one request for many leases
//	...
//	before := time.Now()
//	// obtain the lease for 30 s
//	lease, err := nodes.Add(renewal.Spec{Key: "job-7", ID: id, TTL: 30 * time.Second, SentAt: before})
//	...
//	work(lease.Context(ctx)) // ends with ErrLost as its cause if the lease is lost
//	lease.Close(nil)
//	// give the lease back
package renewal
