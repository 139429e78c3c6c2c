// Package waitqueue lets the callers of one process wait together: a FIFO queue for each key, of which only
// the front talks to the server.
//
// A caller joins the queue of its key with [Group.Wait] or [Group.WaitFunc]. It is done when an attempt, the
// function that asks the server, grants or fails it. The Group guarantees the following:
//
//   - At most one attempt per key is in flight. Callers that arrive meanwhile are part of the next one (group
//     commit), which follows at once if the first settled all its waiters.
//   - An attempt gets the front of the queue, in order of arrival. If it leaves waiters undecided, the queue
//     polls again after the time that the attempt named, after a [Group.Kick], or when the poll interval is
//     over, whichever is first.
//   - When the head is cancelled, the next attempt follows at once: what the head waited for may be enough
//     for others.
//   - A grant whose waiter has gone is given back by a hook, and the next attempt follows.
//   - A cancelled call returns at once, also while an attempt is in flight.
//
// # Cost
//
// A queue costs one wheel entry while it waits, and one goroutine while it works. That goroutine may be the
// one of a caller whose context cannot end. A waiter costs about 200 bytes, and a channel if it blocks; it
// costs neither a goroutine nor a timer. A key without waiters costs nothing.
//
// # Uses
//
// A lock passes all waiters to the attempt, which asks for the head and returns the remaining lease of the
// holder as the time to the next poll. An unlock may call [Group.Handoff] to pass the lock to the next waiter
// of the process.
//
// A semaphore passes the requests of a batch to one script, which grants the longest prefix that fits:
//
//	permits := waitqueue.New(w, waitqueue.Config[string, int64]{
//		MaxBatch: 100,
//		Poll:     5 * time.Second,
//		Listen:   waitqueue.Listener(hub, channelOf),
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
// Calls that must not wait use [Group.Try] and share scripts with those that do.
//
// Order is kept within a key and a process. Among processes, order is the server's business: with Eager each
// arrival reaches the server at once, and Leave reports the waiters that have gone.
package waitqueue
