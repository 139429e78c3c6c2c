// Package conformance has the tests of what all packages of the library have in common: the conventions of the API, the
// rules of hooks and Stats, the documented rights and keys, and how long keys stay in Redis.
package conformance
