// Package sim runs a fleet of processes in simulated time: clients of every kind of the library, a server, the
// network between them, and faults of all three, in a bubble of testing/synctest. A lease of 30 s takes
// milliseconds there, so an hour of the fleet takes about a minute.
//
//	make simulate                    # new seeds for a minute
//	make simulate DURATION=5m        # new seeds for that long
//	make simulate SEED=7             # that seed again
//	make simulate FLEET=1            # new seeds of many processes on few names
//	make simulate-controls           # in how many seeds each wrong implementation is found
//
// A seed determines a Schedule: which process does what when, and which fault happens when, to whom, for how
// long. It is drawn before anything runs. How long a message travels is a function of the seed, of its
// connection, and of how many came before it. Nothing else is drawn, but Go's scheduler chooses among
// goroutines that can run at one instant, and the library draws numbers of its own, so a schedule does not
// always end the same way. A schedule that fails is shortened: faults and operations are dropped while one of a
// few runs still fails.
//
// The library is used as users do, through go-redis. Replaced are the connections, by streams in memory, the
// server, and, for processes that stand still or whose wall clock steps, the clock of the wheel.
//
// What is not like reality:
//
//   - A process that stands still is not stopped: Go has no way to stop some goroutines of a bubble. Nothing
//     reaches it or leaves it, the timers of its wheel wait, its callers do nothing, and connections time out
//     only when it goes on. What go-redis and package context do by timers of their own happens meanwhile.
//   - A process that is killed lives on, without a network, until it is closed. What it does is not seen.
//   - A goroutine that waits for a mutex stops the bubble's time. If the one that holds it waits for the
//     network, as go-redis does while it connects a subscription, the run stops and says nothing. The figures
//     count such runs.
//   - A limit is judged in two steps: by its definition, what each script granted in the order of execution, and what
//     each process granted, by what its scripts charged. After a step of the server's clock only the second is judged.
//     What is given back counts as not charged, and a debt as granted. Where a bucket is given a charge back and later
//     charges were made under another limit, it is not judged until all permits are back.
//   - Delayed tasks are judged in two steps: what each script did, by the rules of package delay in the order of
//     execution, and what callers and handlers saw, by what the scripts did. After a loss of data or a step of the
//     server's clock, contexts may end late, and for a while a task may be early.
//   - Calls take no processor time, so what is late only on a busy machine is never late here.
//   - A failover copies all data at one instant, in which the old primary becomes another server without replicas and
//     the Sentinel names the new one. What the old one executes from then on is not judged; who relies on it is. A
//     FailoverClusterClient is played by the ClusterClient that go-redis makes of it: it has a subscription to the
//     Sentinels that outlives it, so the world tells the client of a switch.
//   - go-redis cannot see that a connection in memory was closed before it sends a call over it.
//   - A quorum, which needs several servers, other replicas, and Cluster are left to the processes of
//     package robustness, and so are SIGKILL, SIGSTOP, sockets, files and servers of other makes.
//
// One schedule in five has only faults in which a client can be wrong about who the primary is and whether it is well;
// see healthFaults. There every call that fails is judged: none may while a new connection works, and what has begun
// goes on through answers that nobody knows and through refused logins.
//
// One seed in eight is a fleet: 3 to 50 processes on one to three names, whose waiters have lines in Redis; see
// fleet.go. While no message is lost, an object may be free with a waiter for a hand-over, and for the time of a guard
// for each process that was killed, stopped or closed: waiters depend on no poll, which is 30 s then. Processes of
// versions without lines are left to the tests of the packages.
//
// # The embedded server
//
// It is github.com/alicebob/miniredis. It differs from Redis:
//
//   - Errors of commands inside scripts lose their code; the network gives it back, as cogwheeltest does.
//   - Faults of the server are answers of its own, before a command is executed, also inside scripts: OOM for
//     commands that may need memory, until a script has written, READONLY and NOREPLICAS for writes, NOPERM for
//     a command, BUSY, LOADING and NOAUTH for all. So are the answers of INFO and of logins.
//   - Lua is gopher-lua: numbers may be formatted otherwise.
//   - Keys expire when they are looked at, at the instant of the command. Nothing is evicted, replicated or
//     persisted: a restart keeps all data or none.
//   - There are no slots, so keys of any name go together. A key that migrates is one for which TRYAGAIN is
//     answered.
//   - MULTI and WATCH are not used by the library, and not tried.
//   - RESP3 is spoken; there are no pushes but those of subscriptions, and no sharded channels.
//
// TestReplay_OnARealServer runs schedules with the same operations against both and compares their outcomes.
package sim
