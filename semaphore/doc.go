// Package semaphore limits how much happens at a time among processes: a number of permits in Redis, which are taken and given
// back. It shares keys and channels with Redisson's RSemaphore and RPermitExpirableSemaphore: services in Java and Go
// share permits and wake each other.
//
// A [Leased] is what most programs want: permits are held by a [Grant], renewed while it is held, and come back by themselves
// when its process dies. A [Semaphore] is a bare counter, without owners.
//
// # What it promises
//
//   - While Redis keeps its data, no more permits are held at a time than there are, by the server's time.
//   - Permits of a Leased whose holder died are free within one lease. A loss is announced before Redis can give the permits to another:
//     [Grant.Done] closes, contexts of the grant end with the cause [ErrLost], [Grant.Valid] is false. A loss is final.
//   - A call takes effect at most once, however often it is sent. Permits that a lost reply granted, or that came for a waiter
//     who had gone, are given back.
//   - A waiter gets its permits when they are free, whatever messages were lost: it looks again after each announcement, after each
//     interruption of its subscription, when the nearest lease ends, and at the latest every five seconds.
//   - Requests of one process are served in order, so that large ones are not starved; with [Client.FairLeased] those of all processes.
//   - A call returns when its context ends, also while Redis hangs; a release, which is sent all the same, within a second of that.
//   - No clock of a client reaches Redis.
//
// # What it does not promise
//
//   - That permits of a Semaphore come back when their holder dies. Use a Leased.
//   - A bound across a failover that loses writes, or for a process that does not run: see [Grant.Token] for the latter.
//   - An order among processes, without FairLeased.
//
// # Cost
//
//	acquire and release   one script each; those of one process that come at the same time share it
//	waiting               one wheel entry, one subscription and one script per look for all waiters of a name in the process
//	held grant            one wheel entry, no goroutine; renewals of up to 1000 grants travel in one script
//	AcquireFunc           no goroutine while it waits
//	a Client              one connection for subscriptions while somebody waits, up to four for renewals when there are any
//
// # Example
//
//	semaphores, err := semaphore.New(rdb)
//	...
//	defer semaphores.Close(ctx)
//	exports := semaphores.Leased("exports")
//	_, err = exports.TrySetPermits(ctx, 5) // once, by whoever comes first
//	...
//	grant, err := exports.Acquire(ctx, 1)
//	...
//	defer grant.Release(ctx)
//	export(grant.Context(ctx)) // ends if the permit is lost
//
// # Algorithm
//
// A Semaphore is a number under its name. Its scripts are recognised when they come again by a sequence number that Redis keeps for each
// process. A Leased keeps, besides, the ids of its permits with the instants at which they expire, as Redisson does since 3.17; the
// ids are chosen by the client, so that asking twice is asking once. Both announce free permits on redisson_sc:{name}.
// A fair semaphore keeps the requests of all processes in the order of their arrival; whatever frees permits assigns them
// to the first, for as long as it takes him to claim them.
package semaphore
