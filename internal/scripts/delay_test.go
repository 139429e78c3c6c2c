package scripts_test

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// delayScenarios are calls of the scripts of delayed tasks. Their keys all exist in most of them, as a slot that migrates
// demands, and hold one task each, so that most calls empty a key.
func delayScenarios(now int64) []scenario {
	us := func(ms int64) string { return strconv.FormatInt((now+ms)*1000, 10) }
	past, soon, later := us(-60_000), us(60_000), us(3_600_000)
	keys := []string{"due", "tasks", "attempts", "running", "later", "failed"}
	editing, working := append(slices.Clone(keys), "record", "waiting", "paused"), append(slices.Clone(keys), "record", "token", "waiting", "paused")

	pending := func(id, at string) string { return "\n ZADD due " + at + " " + id + "\n HSET tasks " + id + " ::" + id }
	tried := func(at string) string { return pending("p", at) + "\n HSET attempts p 1:0:7" }
	claimed := func(id, ends string) string {
		return "\n ZADD running " + ends + " " + id + "\n HSET tasks " + id + " ::" + id + "\n HSET attempts " + id + " 1:0:9@" + past
	}
	next := func(id string) string { return "\n HSET later " + id + " " + soon + ":::next" }
	failed := func(id, at string) string {
		return "\n ZADD failed " + at + " " + id + "\n HSET tasks " + id + " ::" + id + "\n HSET attempts " + id + " 5:0:3"
	}
	ahead := func(id, ends string) string { // not begun, or it waits after a loss
		return strings.Replace(claimed(id, ends+".5"), "1:0:9", "1:2:9", 1)
	}
	lost := func(commands string) string { return strings.Replace(commands, ":9@"+past, ":9@"+past+":", 1) }
	earlier := func(commands string) string { return strings.Replace(commands, "@"+past, "", 1) } // version
	full := tried(later) + claimed("c", soon) + next("c") + failed("f", us(-1000))
	withEdit := func(commands string) [][]any {
		return append(words(commands), []any{"SET", "record", "4 1", "PX", 60_000})
	}
	withWork := func(commands string) [][]any {
		return append(words(commands), []any{"SET", "record", "4 9 0 " + soon, "PX", 60_000}, []any{"SET", "token", "9", "PX", 60_000})
	}
	edit := func(requests ...any) []any { return append([]any{5, 60_000, "PUBLISH", "c"}, requests...) }
	work := func(wanted int, ends ...any) []any {
		return append([]any{5, 60_000, 30_000_000, wanted, 5_000, 3, 2, int64(3_600_000_000), 60_000, "PUBLISH", "c", 1, 2, "", "", 0, ""}, ends...)
	}
	waiting := "\n ZADD waiting 1 first 2 second 3 third 4 fourth"
	waits := func(room int, args []any) []any { // of a process that is, or may be, in the waiting list
		args = slices.Clone(args)
		args[14], args[15] = "me", room
		return args
	}
	probes := waits(3, work(2))
	probes[16] = "1"
	checked := append(work(5)[:13:13], "1", "", 0, "")
	paused := func(state [][]any) [][]any { return append(state, []any{"HSET", "paused", "", past}) }
	queue := func(verb string) []any { return []any{verb, "", "", "", "", ""} }
	cancel := func(id string) []any { return []any{"cancel", id, "", "", "", ""} }
	e, w := scripts.DelayEdit, scripts.DelayWork
	return []scenario{
		{e, "the first task", nil, editing, edit("schedule", "a", 60_000_000, "replace", 0, ":x"), nil},
		{e, "replaces", withEdit(full), editing, edit("schedule", "p", 60_000_000, "replace", 0, ":x"), nil},
		{e, "bounded", withEdit(full), editing, edit("schedule", "p", 60_000_000, "replace", 30_000_000, ":x"), nil},
		{e, "absent", withEdit(full), editing, edit("schedule", "p", 60_000_000, "absent", 0, ":x", "schedule", "a", "@"+later, "absent", 0, ":x"), nil},
		{e, "after a claimed one", withEdit(full), editing, edit("schedule", "c", 60_000_000, "replace", 0, ":x"), nil},
		{e, "in place of a failed one", withEdit(full), editing, edit("schedule", "f", 60_000_000, "replace", 0, ":x"), nil},
		{e, "cancels", withEdit(full), editing, edit(cancel("p")...), nil},
		{e, "cancels a claimed one", withEdit(full), editing, edit(cancel("c")...), nil},
		{e, "cancels and schedules again", withEdit(full), editing, edit(append(cancel("p"), "schedule", "p", 60_000_000, "replace", 0, ":x")...), nil},
		{e, "moves", withEdit(full), editing, edit("move", "p", 60_000_000, "", 0, "", "move", "c", 60_000_000, "", 0, ""), nil},
		{e, "retries", withEdit(full), editing, edit("retry", "f", "", "", "", ""), nil},
		{e, "forgets", withEdit(full), editing, edit("forget", "f", "", "", "", ""), nil},
		{e, "cancels one that waits after a loss", withEdit(full + lost(ahead("w", soon))), editing, edit(cancel("w")...), nil},
		{e, "replaces one that waits after a loss", withEdit(full + lost(ahead("w", soon)) + next("w")), editing, edit("schedule", "w", 60_000_000, "replace", 0, ":x"), nil},
		{e, "all of these", withEdit(full), editing, edit(slices.Concat(
			[]any{"schedule", "a", 60_000_000, "replace", 0, ":x", "forget", "f", "", "", "", ""}, cancel("c"), cancel("p"), cancel("a"),
		)...), nil},
		{e, "none of those that wait listens", withEdit(full + waiting), editing, edit("schedule", "a", 0, "replace", 0, ":x", "move", "p", 0, "", 0, ""), nil},
		{e, "pauses", withEdit(full), editing, edit(queue("pause")...), nil},
		{e, "resumes", paused(withEdit(full)), editing, edit(queue("resume")...), nil},
		{e, "resumes, and none of those that wait listens", paused(withEdit(tried(past) + waiting)), editing, edit(queue("resume")...), nil},
		{e, "resumes, schedules and pauses", paused(withEdit(full)), editing, edit(slices.Concat(
			queue("resume"), []any{"schedule", "a", 0, "replace", 0, ":x"}, queue("pause"), queue("pause"),
		)...), nil},
		{e, "resumes what is not paused", withEdit(full), editing, edit(append(queue("resume"), cancel("p")...)...), nil},
		{e, "a copy", append(words(full), []any{"SET", "record", "5 1", "PX", 60_000}), editing, edit(cancel("p")...), nil},

		{w, "nothing", nil, working, work(5), nil},
		{w, "the first task", withWork(pending("a", past)), working, work(5), nil},
		{w, "claims", withWork(tried(past) + claimed("c", soon) + next("c") + failed("f", us(-1000))), working, work(5), nil},
		{w, "done", withWork(tried(later) + claimed("c", soon) + failed("f", us(-1000))), working, work(0, "done", "c", 9, ""), nil},
		{w, "done, and the next follows", withWork(full), working, work(5, "done", "c", 9, ""), nil},
		{w, "again", withWork(tried(later) + claimed("c", soon) + next("d") + failed("f", us(-1000))), working, work(0, "again", "c", 9, 60_000_000), nil},
		{w, "again at once", withWork(tried(later) + claimed("c", soon) + next("d") + failed("f", us(-1000))), working, work(1, "again", "c", 9, 0), nil},
		{w, "failed", withWork(tried(later) + claimed("c", soon) + next("d") + failed("f", us(-1000))), working, work(0, "failed", "c", 9, ""), nil},
		{w, "failed, with an error", withWork(tried(later) + claimed("c", soon) + next("d") + failed("f", us(-1000))), working, work(0, "failed", "c", 9, "no!\n"), nil},
		{w, "failed when it is pending again", withWork(claimed("d", soon) + pending("c", past) + "\n HSET attempts c 1:1:9:"), working, work(5, "failed", "c", 9, "no"), nil},
		{w, "failed, and too many others", withWork(full + failed("g", us(-500)) + claimed("e", soon)), working, work(0, "failed", "e", 9, ""), nil},
		{w, "handed back", withWork(tried(later) + claimed("c", soon) + next("d") + failed("f", us(-1000))), working, work(0, "back", "c", 9, 0), nil},
		{w, "a lease has ended", withWork(tried(later) + claimed("c", past) + next("d") + failed("f", us(-1000))), working, work(0), nil},
		{w, "a lease has ended, and claims", withWork(tried(past) + claimed("c", past) + next("d") + failed("f", past)), working, work(9), nil},
		{w, "a lease has ended, and the next follows", withWork(tried(later) + claimed("c", past) + next("c") + failed("f", us(-1000))), working, work(0), nil},
		{w, "a lease of one that had not begun has ended", withWork(tried(later) + ahead("c", past)), working, work(0), nil},
		{w, "the pause of one that was lost has ended", withWork(tried(later) + lost(ahead("c", past))), working, work(5), nil},
		{w, "a lease has ended too often", withWork(tried(later) + strings.Replace(claimed("c", past), "1:0:9", "1:2:9", 1)), working, work(0), nil},
		{w, "begun", withWork(tried(later) + ahead("c", soon)), working, work(0, "begun", "c", 9, ""), nil},
		{w, "handed back to its time", withWork(tried(later) + ahead("c", soon) + next("d")), working, work(0, "back", "c", 9, ""), nil},
		{w, "handed back, of an earlier version", withWork(tried(later) + earlier(claimed("c", soon)) + next("d")), working, work(0, "back", "c", 9, ""), nil},
		{w, "a lease of an earlier version has ended", withWork(tried(later) + earlier(claimed("c", past))), working, work(0), nil},
		{w, "done while it waits after a loss", withWork(tried(later) + lost(ahead("c", soon))), working, work(0, "done", "c", 9, ""), nil},
		{w, "done when it is pending again", withWork(claimed("d", soon) + pending("c", past) + "\n HSET attempts c 1:1:9:"), working, work(5, "done", "c", 9, ""), nil},
		{w, "done when it has failed", withWork(full + strings.Replace(failed("g", us(-500)), "5:0:3", "5:3:3:", 1)), working, work(0, "done", "g", 3, ""), nil},
		{w, "without a text", withWork(tried(past) + "\n HDEL tasks p"), working, work(5), nil},
		{w, "checks its keys", withWork(full), working, checked, nil},
		{w, "old failures", withWork(full + failed("g", us(-7_200_000))), working, work(0), nil},
		{w, "everything at once", withWork(tried(past) + claimed("c", past) + next("c") + claimed("d", soon) + failed("f", us(-7_200_000))), working, work(9, "done", "d", 9, ""), nil},
		{w, "while it is paused", paused(withWork(tried(past) + claimed("c", past) + next("c") + claimed("d", soon))), working, work(9, "done", "d", 9, ""), nil},
		{w, "waits while it is paused", paused(withWork(tried(past) + waiting)), working, waits(5, work(5)), nil},
		{w, "waits", withWork(tried(later)), working, waits(5, work(5)), nil},
		{w, "waits behind others", withWork(tried(later) + waiting), working, waits(5, work(5)), nil},
		{w, "waits, but does not listen", withWork(tried(later) + waiting), working, probes, nil},
		{w, "claims what others have missed", withWork(tried(past) + waiting), working, waits(5, work(5)), nil},
		{w, "claims its last task, and none of those behind it listens", withWork(tried(past) + "\n ZADD waiting 0 me" + waiting), working, waits(1, work(1)), nil},
		{w, "leaves the list, which is empty then", withWork(tried(later) + "\n ZADD waiting 0 me"), working, waits(0, work(0)), nil},
		{w, "a copy, of one that waits", append(words(full+waiting+" 5 me"), []any{"SET", "record", "5 8 1 " + soon, "PX", 60_000}), working, waits(5, work(5)), nil},
		{w, "a copy", append(words(full), []any{"SET", "record", "5 8 1 " + soon, "PX", 60_000}, []any{"SET", "token", "9", "PX", 60_000}), working, work(5), nil},

		{scripts.DelayRenew, "held", words(claimed("c", us(1_000))), []string{"running", "attempts"}, []any{"c", 9, 30_000_000}, nil},
		{scripts.DelayRenew, "held, and not begun", words(claimed("c", us(1_000))), []string{"running", "attempts"}, []any{"c", 9, "30000000.5"}, nil},
		{scripts.DelayRenew, "lost", words(claimed("c", soon)), []string{"running", "attempts"}, []any{"c", 8, 30_000_000}, nil},
		{scripts.DelayState, "each phase", words(full), append(slices.Clone(keys), "paused"), []any{"p", "c", "f", "x"}, nil},
		{scripts.DelayState, "while it is paused", paused(words(full)), append(slices.Clone(keys), "paused"), []any{"p"}, nil},
	}
}
