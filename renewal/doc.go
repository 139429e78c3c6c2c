// Package renewal keeps leases alive, and tells their holders when they are lost.
//
// A lease is anything that a server grants for a limited time and prolongs on request: a lock in Redis, a
// permit, a session. Its holder must renew the lease well before it ends, again and again, through lost replies
// and servers that hang. If the lease cannot be renewed, the holder must stop before the lease ends on the
// server. A [Renewer] does both for many leases at once.
//
// # What it promises
//
//   - The local deadline of a lease is before its expiry on the server, however long request and reply took:
//     the lease counts from the instant before its request was sent, less a margin. The margin is one percent
//     of the lease, for clocks of different rates; one tick of the wheel; and a tenth of the lease but at most
//     50 ms, for delays of the process.
//   - Elapsed time includes suspend, and ignores steps of the wall clock. It is measured by the monotonic
//     clock. If the wall clock has moved against that, the boot clock tells a suspend from a step. If only the
//     wall clock was set ahead, by more than the margin, the Renewer renews its leases at once, and the answers
//     decide whether they are held: the step may be the correction after a pause of the virtual machine that no
//     other clock has counted. Only Linux, macOS, Windows and OpenBSD have a boot clock that is known to count
//     suspend; on other systems, a wall clock that is set ahead counts as elapsed time.
//   - At the deadline the lease is lost, even while a renewal is in flight: [Lease.Done] closes, [Lease.Err]
//     returns the cause, and a later success does not revive the lease.
//   - A lease that the server has ended early, for example because its key was deleted, is lost at the next
//     renewal, within a third of the TTL.
//   - A renewal that fails is retried after about a twentieth of the lease, until the deadline. Only an answer
//     that the lease is gone ends it earlier.
//   - After [Lease.Close] no further call carries the lease, and late replies are ignored.
//   - A destination that hangs delays no other.
//
// # What it does not promise
//
// A process that does not run cannot be notified. For a holder that was suspended past its deadline,
// [Lease.Valid] returns false as soon as it wakes; Done closes soon after a call of Valid or when the next
// lease is due, whichever is first. A pause of the virtual machine that no clock has counted is noticed when
// the wall clock is corrected; for a lease of [Renewer.Watch], which is never renewed, it is not noticed. Work
// that must not overlap with that of a successor must check a fencing token where it takes effect.
//
// # Watching it
//
// [Renewer.Stats] counts renewals, losses, and calls to backends with their durations. [WithHooks] reports them
// one by one. Failed calls come before losses: a call that fails is retried until the deadline.
//
// # Cost
//
// A held lease costs one entry on the wheel, about 270 bytes, and no goroutine. Leases that are due within a
// hundredth of their TTL (at most 300 ms) share calls of up to 500 leases. Renewals are spread at random, so
// the load is even. At most four calls per destination are in flight; their goroutines end when nothing has
// been due for a second or two. Ten thousand leases of 30 s cost about forty calls every ten seconds.
//
// # Example
//
//	w := wheel.Default()
//	r, err := renewal.New(w)
//	...
//	nodes, err := r.Destination(backend) // backend sends one request for many leases
//	...
//	before := w.Now()
//	// obtain the lease for 30 s
//	lease, err := nodes.Add(renewal.Spec{Key: "job-7", ID: id, TTL: 30 * time.Second, SentAt: before})
//	...
//	work(lease.Context(ctx)) // ends with ErrLost as its cause if the lease is lost
//	lease.Close(nil)
//	// give the lease back
package renewal
