// Package cogwheelotel reports wheels and clients to OpenTelemetry: metrics, and spans for waits, holds and tasks.
//
//	telemetry, err := cogwheelotel.New() // the global providers, unless options give others
//	locks, err := redislock.New(rdb, redislock.WithHooks(telemetry.LockHooks("orders")))
//	observed, err := telemetry.ObserveLocks("orders", locks)
//	defer observed.Unregister()
//
// Hooks record spans, and histograms of durations in seconds. Observe methods export the Stats when metrics are
// collected. Either works without the other. Each method takes a name, which is an attribute of all its spans
// and metrics, such as cogwheel.client.name. Give each object of a kind a different name: the metrics of two objects
// with one name cannot be told apart.
//
// A client takes one Hooks. Functions of your own go around those of a Telemetry, or in a field that is nil:
//
//	hooks := telemetry.LockHooks("orders")
//	record := hooks.Lost
//	hooks.Lost = func(e redislock.Event) { record(e); alert(e) }
//
// After an observed object was closed, its numbers of now are 0; then unregister the Registration.
//
// # Spans
//
// A span has the start time of its wait, hold, decision or outage, and is recorded when that has ended. Its parent is
// the span in the context of the call, also for a hold that ends after the call has returned. A limit.outage belongs to
// no call and has no parent. A task.attempt is the root of a trace. It has a link to the span that scheduled the task,
// and begins with its handler, whose context has it.
//
//	lock.wait       a call for a lock, until it has the lock or fails
//	lock.hold       from there until the lock is released or lost
//	permit.wait     a call for permits
//	permit.hold     a grant of leased permits
//	limit.decision  a call of a limiter, with its wait; only under a sampled span
//	limit.outage    the time in which the policy decided for a node of Redis that did not answer
//	task.attempt    an attempt of a task of package delay
//
// A call that finds the lock held, or too few permits, adds the event lock.contended or permit.contended to the
// span in its context. Names of locks, semaphores, limiters and queues are attributes of spans, and so are keys of
// a Limiter and ids of tasks. They are never attributes of metrics, so the number of metrics does not grow with them.
//
// # Cost
//
// LimitHooks cost most in proportion: a denial from memory takes half a microsecond without them, about a
// microsecond with providers that do nothing, and about two with the providers of the SDK. Where a limiter
// denies millions of calls a second, use only ObserveLimits, which costs nothing between collections.
package cogwheelotel
