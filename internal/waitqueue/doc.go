// Package waitqueue lets the callers of one process wait together: a FIFO per name, of which only the front talks to the server.
//
// A [Group] has one queue per name in use. A caller joins its queue with [Group.Wait] or [Group.WaitFunc] and is done when an
// attempt, the function that asks the server, grants or fails it. The Group sees to it that
//
//   - at most one attempt per name is under way. Who arrives meanwhile is in the next one (group commit), which
//     follows at once if all of the first was settled;
//   - an attempt gets the front of the queue, in order of arrival. If it does not settle all of it, the queue looks again
//     after the time that the attempt named, after a [Group.Kick], or when the poll interval is over, whichever is first;
//   - when the head is cancelled, the next look follows at once: what it waited for may suffice for the others;
//   - a grant that finds its waiter gone is given back by a hook, and the next look follows;
//   - a call that is cancelled returns at once, also while an attempt is under way.
//
// # Cost
//
// A queue costs one wheel entry while it waits and one goroutine while it works, which for the first attempt may be that of a caller
// whose context cannot end. A waiter costs about 200 bytes, a blocking
// one a channel besides, and neither a goroutine nor a timer. A name without waiters costs nothing.
//
// # Three ways to use it
//
// A lock sets MaxBatch 1: the attempt tries to take the lock for the head and returns the holder's remaining lease as
// again. Unlocking may call [Group.Handoff] to pass the lock to the next waiter of this process.
//
// A semaphore passes what every waiter of the batch wants to one script, which grants the longest prefix that fits:
//
//	permits := waitqueue.New(w, waitqueue.Config[int64]{
//		MaxBatch: 100,
//		Poll:     5 * time.Second,
//		Listen:   waitqueue.Hub(hub, channelOf),
//		Attempt: func(name string, batch []*waitqueue.Waiter[int64]) (time.Duration, error) {
//			n, nearestExpiry, err := acquire(name, batch) // one script
//			for _, w := range batch[:n] {
//				w.Grant()
//			}
//			return nearestExpiry, err
//		},
//		GiveBack: func(name string, granted []int64) { release(name, granted) },
//	})
//	_, err := permits.Wait(ctx, name, 3)
//
// A rate limiter does the same without a channel: its script also tells when the first waiter that was not granted will
// fit, which is again. Calls that must not wait go through [Group.Try] and share scripts with those that do.
//
// Order is kept within a name and a process. Among processes it is the server's business; with Eager every arrival reaches
// the server at once and Leave tells it who has gone.
package waitqueue
