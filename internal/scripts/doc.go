// Package scripts has every Lua script of the library, one file each, and runs them.
//
// # Rules for scripts
//
// A client may send a script more than once: go-redis repeats a command whose reply was lost, and the server may have
// executed it each time. A script is therefore idempotent on an id that the client chose, or it is declared with
// [OnceOnly]. Then it is sent so that nothing repeats it.
//
// A script reads the server's clock (TIME) and sets relative expiries (PEXPIRE). It never uses times of a client. It
// packs bytes with string.char, not with the struct library. All its keys share one hash tag; [CheckName],
// [PrefixName] and [SuffixName] see to that.
//
// A script never stops half-way. Every command that can fail does so before the first write: reads find keys of a wrong
// type and values that are not numbers, and the first write finds that memory is short or that the server is read-only.
// Rights are different, because Redis checks them for each command. So a script does one of three things: it writes
// with one command alone; it proves the right to each further command by a call that changes nothing, such as ZREM of
// no member; or it undoes earlier writes by a command that was not refused. Messages to waiters are hints and never
// fail a call. [TestScripts_LeaveNoHalf] revokes every command of every script. The texts of errors inside a script
// differ between servers, so a script tells apart no more than WRONGTYPE and the refusal of a slot that migrates.
//
// A server at its memory limit refuses ZADD, HSET, SET and the like, but only as the first write of a script. A script
// that renews, gives back, ends or deletes takes no memory worth a refusal. So it begins with another write, if need be
// with one that changes nothing. [TestScripts_AFullServerRefusesWhatTakesMemoryAlone] fills the server.
//
// KEYS are keys alone, without channels: while a slot of a cluster migrates, Redis refuses a call if some of its keys
// are absent. It also refuses a command of the script if the key of the command is absent. So a script reads first,
// adds next and removes last. It touches no key that it may have emptied, except by pcall where a refusal does not
// matter. A key that is not among KEYS may seem absent because it is on the other node.
// [TestScripts_LeaveNoHalf_WhileTheirSlotMigrates] moves every subset of the keys of every scenario.
//
// # Form
//
// A script opens with a block that states its purpose, every KEYS and ARGV, the reply, and the errors that the script
// itself returns. Then it names each argument. Code that several scripts share is in include/. The line
//
//	-- include: name
//
// is replaced by the text of include/name.lua.
//
// Scripts that decide calls read a number by ARGV[1] + 0. That takes less time than tonumber, which is a function.
//
// # Adding a script
//
// Add name.lua, declare it in the Go file of its object, and add its scenarios to TestScripts_LeaveNoHalf.
package scripts
