// Package oracle has the definitions by which tests judge rate limits, each of them once. It knows nothing of the
// library: the tests of package ratelimit, the robustness tests and the simulation compare what the library grants
// with it.
//
// An [Algorithm] is exact: it says what is granted at an instant. It judges servers whose clock, and whose order of
// calls, the test knows. A [Bound] follows from it, and is how much any interval may hold. It judges callers that
// know only between which instants they were granted something, in whatever order.
package oracle
