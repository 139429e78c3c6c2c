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
// A script leaves no half behind. Whatever can fail does so before the first
// write: reads find keys of a wrong type and numbers that are none, and the first
// write finds that memory is short or the server read-only. Rights are different, as
// Redis checks them for each command: a script writes with one command alone, or
// proves each further one by a call that changes nothing, such as ZREM of no
// member, or undoes the writes before it by a command that was not refused. Messages
// to waiters are hints and never fail a call. [TestScripts_LeaveNoHalf] revokes
// every command of every script.
//
// KEYS are keys alone, without channels: while a slot of a cluster migrates, a call
// with keys of which some are absent is refused. Redis refuses a command of the script
// then, too, if its key is absent. So a script reads first, adds next and removes last,
// and touches no key that it may have emptied, except by pcall where a refusal does not
// matter. The absence of a key that is not among KEYS proves nothing: it may be on the
// other node. [TestScripts_LeaveNoHalf_WhileTheirSlotMigrates] moves every subset of
// the keys of every scenario.
//
// # Form
//
// A script opens with a block that says what it is for, names every KEYS and ARGV, what it
// returns and which errors are its own, and gives each argument a name. What
// several scripts share stands in include/, and
//
//	-- include: name
//
// puts the text of include/name.lua in the place of the line.
//
// # Adding a script
//
// Put name.lua beside the others, declare it in the Go file of its subject, and add its
// scenarios to TestScripts_LeaveNoHalf.
package scripts
