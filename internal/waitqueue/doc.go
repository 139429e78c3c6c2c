// Package waitqueue has a FIFO queue of waiters for each key. Only the front of a queue sends calls to the server.
//
// A caller joins the queue of its key with [Group.Wait] or [Group.WaitFunc]. An attempt is a call to the server for
// the front of the queue; it grants or fails waiters. The Group guarantees:
//
//   - At most one attempt per key is in flight. Callers that arrive meanwhile join the next attempt (group commit),
//     which follows at once if the first settled all its waiters.
//   - An attempt has the front of the queue, in order of arrival. If it leaves waiters undecided, the next attempt
//     follows after the time that this one returned, after a [Group.Kick], or after the poll interval, whichever is
//     first.
//   - The batch of an attempt is built just before its call is sent. It never contains a caller that has left.
//   - When the head leaves, the next attempt follows at once, because the others may need less than the head.
//   - A grant whose waiter has left is returned by a hook, or by the next attempt, which follows at once.
//   - A cancelled call returns at once, even while its attempt is in flight. An attempt whose waiters have all left is
//     not retried.
//
// # Cost
//
// A waiting queue has one wheel entry and no goroutine: attempts run on the goroutines of the sender, or on the
// goroutine of a caller whose context cannot end. A waiter takes about 200 bytes, and a channel if it blocks. A key
// without waiters takes nothing.
//
// # Uses
//
// For a lock, an attempt asks for the head alone, and returns the remaining lease of the holder as the time until the
// next attempt. An unlock may call [Group.Handoff] to pass the lock to the next waiter of the process. The call of a
// release may take the next attempt along, by [Group.Next].
//
// For a semaphore, one script receives the requests of a batch and grants the longest prefix that fits:
//
//	permits := waitqueue.New(w, waitqueue.Config[string, int64]{
//		MaxBatch: 100,
//		Poll:     5 * time.Second,
//		Listen:   pubsub.Listener(hub, channelOf),
//		Submit:     send, // by a calls.Sender
//		Build: func(name string, batch []*waitqueue.Waiter[int64]) waitqueue.Attempt {
//			return waitqueue.Attempt{
//				Call: acquire(name, batch), // one script
//				Read: func(r redisconn.Reply) (time.Duration, error) {
//					n, nearestExpiry, err := parse(r)
//					for _, w := range batch[:n] {
//						w.Grant()
//					}
//					return nearestExpiry, err
//				},
//			}
//		},
//		GiveBack: func(name string, granted []int64) { release(name, granted) },
//	})
//	_, err := permits.Wait(ctx, name, 3)
//
// Calls that must not wait use [Group.Try] and share attempts with waiters.
//
// The order of arrival holds within a key and a process. Among processes the server keeps the order; Leave reports the
// waiters that have left.
package waitqueue
