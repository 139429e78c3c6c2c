// Package cogwheel has the types that the packages of the library share: the error for an invalid argument, and
// the report of Check. The packages are:
//
//   - wheel: timers in constant time, for request timeouts, idle connections and retries
//   - redislock: distributed locks on Redis, whose holders learn of a loss
//   - ratelimit: rate limits across processes; ratelimit/httplimit is middleware for net/http
//   - semaphore: at most n holders at a time, in all processes together
//   - delay: tasks that run at their time, in any process, although the one that scheduled them has died
//   - renewal: the watchdog of the locks, for leases of any server
//   - cogwheeltest: an embedded server for tests, in a module of its own
//
// The page of each package in docs begins with an example, and docs/recipes.md has functions to copy.
package cogwheel
