// Package conformance has the tests that concern all packages of the library: the conventions of the API, the rules of
// hooks and Stats, the documented rights and keys, and how long keys stay in Redis.
package conformance
