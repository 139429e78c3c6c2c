// Package statusz is a status page for the cogwheel objects of a process. It begins with a verdict, which names the
// errors of the last minute and the limiters whose policy decides now. Below are the locks and permits that are held
// or waited for, the attempts of tasks, the decisions of limiters, and timers with their lateness. It is an
// http.Handler on the standard library alone:
//
//	mux.Handle("GET /debug/cogwheel", statusz.Handler(
//		statusz.Wheel("main", w),
//		statusz.Locks("orders", locks),
//		statusz.Limits("api", limits),
//		statusz.Semaphores("reports", semaphores),
//		statusz.Delays("orders", delays),
//	))
//
// The page is plain HTML that needs no JavaScript. With ?format=json, or for a client that prefers
// application/json, it is JSON with durations in seconds. With ?refresh=5 a browser loads it again every 5 s.
//
// Lists show 50 rows at most, and say how many are left out; ?rows=500 asks for more, up to 10000. The counts are
// complete whatever the number of rows. A parameter that is no positive number is ignored. The page talks to no
// server: it shows what this process holds and waits for, not what others do.
//
// The page shows the names of locks and the metadata of their holders, so serve it behind authentication, or on a
// port that only operators reach.
package statusz
