// Package algo has the algorithms of package ratelimit. An algorithm makes the call of a script from a request, and
// decisions from its reply. It is pure: it has no lock, clock or client, and remembers nothing but what a Snapshot
// says.
//
// A new algorithm of Limiter is one file that implements Algorithm, and Combinable to be a part of an All; one script;
// and one row of Kinds.
package algo
