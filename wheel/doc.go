// Package wheel schedules callbacks on a hashed timing wheel, after Netty's HashedWheelTimer (Varghese and
// Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987). It is made for services with very many timers of
// which most are stopped before they fire: request timeouts, idle connections, retries, leases, delayed jobs.
//
// # What it promises
//
//   - An accepted entry ends exactly once: it fires, it is stopped, or the wheel's Stop ends it.
//   - Stop returns the callbacks and values that have not fired. [Wheel.Sleep] and waits in the other packages of
//     this library return an error that matches [ErrStopped], and leases are lost.
//   - An entry never fires before its deadline, and at most one tick after it, provided that processors are
//     free and the executor has a free goroutine. [Goroutines], the default executor, always has one. In a tick
//     with at most 16 entries in each of the wheel's shards, each fires at its deadline, as with time.AfterFunc.
//     In a tick with more the wheel does not wake for each: they fire when it is awake for others, and at the
//     latest when the tick ends. In a tick of more than 10 ms it wakes about every 10 ms.
//   - If [Timer.Stop] returns true, the callback will not run. An entry that is due and waits for its turn can
//     still be stopped, until its callback is about to begin.
//   - A callback that panics is reported, and one that calls runtime.Goexit ends without a report. Neither harms
//     another callback. With Goroutines a callback that blocks delays no other.
//   - Entries begin in the order of their ticks, also after a stall.
//   - After the first call of Stop has returned without an error, no callback runs or begins.
//   - Deadlines are monotonic: a step of the wall clock moves only the deadlines of a [Schedule] that follows
//     the wall clock.
//
// # What it does not promise
//
// An order among entries of one tick, and more punctuality than the runtime has: a wheel wakes by a runtime
// timer, so when all processors are busy it waits like any goroutine.
//
// # Cost
//
// Let n be the number of pending entries.
//
//	scheduling               O(1), no allocation beside the closure, no system call, one uncontended mutex
//	Stop, Reschedule         O(1), no allocation, no system call, one uncontended mutex
//	firing                   O(1); an entry more than 64 rounds away is moved once or twice before
//	waiting                  nothing: no wakeups before the earliest deadline, which may be a stopped entry's
//	after a stall            O(occupied buckets + due entries), however many ticks were missed
//	memory                   24 bytes per pending entry and the value: 8 bytes for a func, a T for Typed[T];
//	                         freed when entries end. A closure is extra, typically 32 to 64 bytes
//	goroutines               one that keeps the time (the worker), a few that run callbacks, and one for each
//	                         callback that blocks; none while the wheel is empty, see New
//
// # Example
//
// A connection that is closed when it has been idle for 30 seconds, conn being a net.Conn:
//
//	timeout, err := w.AfterFunc(30*time.Second, func() { _ = conn.Close() })
//	if err != nil {
//		return err
//	}
//	defer timeout.Stop()
//	for {
//		n, err := conn.Read(buffer)
//		if err != nil {
//			return err // closed, by the other side or by the timeout
//		}
//		timeout.Reschedule(30 * time.Second) // nearly free
//		serve(buffer[:n])
//	}
//
// docs/wheel.md is a guide, and docs/architecture.md explains the design.
package wheel
