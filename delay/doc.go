// Package delay runs tasks at their time, in whichever process is free then: an order that closes itself after half an
// hour, although the process that took it has died. A task is an id, a payload and a due time in Redis.
//
//	delays, err := delay.New(rdb)
//	...
//	defer delays.Close(ctx)
//	orders := delays.Queue("orders")
//	err = orders.Schedule(ctx, "order-7", 30*time.Minute, payload)
//	ok, err := orders.Cancel(ctx, "order-7") // it was paid: if ok, no attempt begins
//
//	err = orders.Serve(ctx, 16, func(ctx context.Context, t *delay.Task) error { // in any number of processes
//		return closeOrder(ctx, t.ID, t.Payload, t.Token)
//	})
//
// For tasks that may be lost with the process, use package wheel.
//
// # What it promises
//
//   - A task never runs before its time, by the clock of Redis.
//   - A task runs at least once while Redis keeps its data. It runs again after an error or a panic of its handler, if
//     Serve ends before its handler has succeeded, and if its lease ends: because its process died, was frozen, or
//     did not reach Redis. There is no other second attempt, whichever replies were lost.
//   - Schedule, Cancel and Reschedule take effect at most once, however often the Client sends them.
//   - If Cancel returns true, no attempt of the task that it removed begins. One that has begun before may still run.
//   - [Task.Token] rises with every attempt of an id, so that a store can refuse a late one. The effect of a task is
//     made once if it is made only where it is still to be made; see docs/delay.md.
//   - The context of a handler ends before another process can run its task.
//
// # What it does not promise
//
//   - That a task runs at its time while all workers are busy, no process serves the queue, or it is paused.
//   - An order of tasks that are due at the same time.
//   - That Redis keeps its data: a failover can lose the last writes. See docs/operations.md.
//
// # Cost
//
//	Schedule, Cancel     one script, shared by concurrent calls of one process for a queue
//	pending task         about 200 bytes of Redis beside id and payload; nothing in any process
//	serving, none due    one wheel entry, two subscriptions, a query per poll interval
//	tasks that are due   one script of one process claims up to 500, and records the ends of earlier attempts
//	running task         one goroutine and one wheel entry; a script renews up to 500
//
// # Algorithm
//
// A sorted set has the ids of pending tasks by due time, a second one those of claimed tasks by the end of their lease.
// A process claims tasks up to 5 ms before their time, and its wheel keeps the time. Processes with a free worker wait
// in a list. The first one sleeps until the next task is due; a message tells it of one that is due earlier. When it
// has no room left, it leaves the list, and a message tells the next one. Two more ask a little later, in case the
// first has died. The others only poll. Each process numbers its calls, and Redis keeps the number and the result of
// the last one, by which a script recognises a call that is sent again.
package delay
