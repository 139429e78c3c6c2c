// Package keys has what a Client of package ratelimit knows of its keys, and who asks for them: the calls that share
// scripts, the waiters in line with their permits, the memory of denials, and settlements. It makes decisions; hooks,
// counts, shadows and the errors of arguments are above it.
package keys
