// Package scripts holds every Lua script of the library, one file each, and the
// one way to run them.
//
// # Rules for scripts
//
// A client may send a script more than once: go-redis repeats a command whose
// reply was lost, and the server may have executed it each time. A script is
// therefore idempotent on an id that the client chose, or it is declared with
// [OnceOnly], which is sent so that nothing repeats it.
//
// A script reads the server's clock (TIME) and sets relative expiries (PEXPIRE),
// never times of a client. It packs bytes with string.char, not with the struct
// library. All its keys share one hash tag, which [CheckName], [PrefixName] and
// [SuffixName] see to.
//
// Its first line is
//
//	-- name.lua  KEYS[1]=what ARGV: first, second  returns {what, ...}
//
// # Adding a script
//
// Put name.lua beside the others and declare it in the Go file of its subject:
//
//	var LockAcquire = declare("lock_acquire")
package scripts
