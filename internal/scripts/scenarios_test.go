package scripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// words are commands of a state, one a line.
func words(commands string) (state [][]any) {
	for line := range strings.Lines(commands) {
		if fields := strings.Fields(line); len(fields) > 0 {
			command := make([]any, len(fields))
			for i, f := range fields {
				command[i] = f
			}
			state = append(state, command)
		}
	}
	return state
}

// ms is an instant as it stands in a sorted set.
func ms(instant int64) string { return strconv.FormatInt(instant, 10) }

// scenarios are calls of every script that together execute each of its commands. now is the server's time,
// ms.
func scenarios(now int64) []scenario {
	all := append(lockScenarios(now), rwScenarios()...)
	all = append(all, stringScenarios(now)...)
	all = append(all, fairLockScenarios(now)...)
	all = append(all, semScenarios()...)
	all = append(all, permitScenarios(now)...)
	all = append(all, inLines(now)...)
	all = append(all, fairScenarios(now)...)
	all = append(all, rateScenarios(now)...)
	all = append(all, delayScenarios(now)...)
	return append(all, emptyingScenarios(now)...)
}

// emptyingScenarios are calls all of whose keys exist, as a slot that migrates demands. Most of them empty one.
func emptyingScenarios(now int64) []scenario {
	later, gone := ms(now+100_000), ms(now-1)
	lines := []string{"n", "q", "t", "a"}
	wait, try := []any{"me:1", 30_000, 1, 300_000, 15_000, "PUBLISH", "c"}, []any{"me:1", 30_000, 0, 300_000, 15_000, "PUBLISH", "c"}
	leave := []any{"me:1", 300_000, "PUBLISH", "c"}
	const mine, other, fence = "HSET n me:1 1\n PEXPIRE n 5000", "HSET n you:1 1\n PEXPIRE n 5000", "\n SET f 7 PX 5000"
	place := func(id, alive string) string {
		return "\n RPUSH q " + id + "\n ZADD t " + ms(now+400_000) + " " + id + "\n ZADD a " + alive + " " + id
	}
	java := "\n RPUSH q java:1\n ZADD t " + ms(now+900_000) + " java:1"
	const expires = "\n PEXPIRE q 9000\n PEXPIRE t 9000\n PEXPIRE a 9000"

	permit, shared := []string{"n", "l", "f"}, []string{"n", "l", "f", "n"}
	held, over := "SET n 2\n ZADD l "+later+" "+idA, "SET n 0 PX 9000\n ZADD l "+gone+" "+idA+"\n PEXPIRE l 9000"
	take := func(idleMillis int, n int, ids ...any) []any {
		return append([]any{"PUBLISH", "c", 60_000, idleMillis, n, 0, "", 30_000, n}, ids...)
	}

	counting := append(words("SET n 3 PX 9000"), []any{"SET", "p", "6 1 0", "PX", 9_000}, []any{"SET", "o", "5 1"})

	rated := []string{"c", "v", "l"}
	const config = "HSET c rate 10 interval 60000 type 0 keepAliveTime "
	member := func(id string, n byte) string { return "\x10" + fmt.Sprintf("%-16s", id) + string([]byte{n, 0, 0, 0}) }
	x := member("x", 1)
	log := func(keepAlive string, age int64) [][]any {
		return append(words(config+keepAlive+"\n SET v 7"), []any{"ZADD", "l", ms(now - age), member("old", 3)})
	}
	many := log("0", 90_000)
	for i := range 200 {
		many = append(many, []any{"ZADD", "l", ms(now - 80_000), member(fmt.Sprint(i), 1)})
	}
	return []scenario{
		{scripts.LockAcquire, "mine, both keys there", words(mine + fence), []string{"n", "f"}, []any{"me:1", 30_000, 60_000, 5}, nil},
		{scripts.LocksRelease, "the same lock twice", words(mine), []string{"n", "n"}, []any{"PUBLISH", "me:1", "me:2"}, nil},

		{scripts.FairLockAcquire, "another's, and only the dead wait", words(other + place("dead:1", gone) + place("dead:2", gone) + expires), lines, wait, nil},
		{scripts.FairLockAcquire, "another's, only the dead wait, and no wait", words(other + place("dead:1", gone) + expires), lines, try, words(other)},
		{scripts.FairLockAcquire, "another's, and Java waits behind the dead", words(other + place("dead:1", gone) + java + expires), lines, wait, nil},
		{scripts.FairLockAcquire, "another's, and it waits behind the dead", words(other + place("dead:1", gone) + place("me:1", later) + expires), lines, wait, nil},
		{scripts.FairLockAcquire, "mine, and only the dead wait", words(mine + place("dead:1", gone) + expires), lines, wait, nil},
		{scripts.FairLockAcquire, "mine, and its place is left", words(mine + place("me:1", later) + java + fence + expires), append(lines, "f"), append(slices.Clone(wait), 60_000), nil},
		{scripts.FairLockRelease, "mine, and only the dead wait", words(mine + place("dead:1", gone) + place("dead:2", gone) + expires), lines, leave, words(place("dead:1", gone) + place("dead:2", gone) + expires)},
		{scripts.FairLockRelease, "mine, and Java waits behind the dead", words(mine + place("dead:1", gone) + java + expires), lines, leave, words(place("dead:1", gone) + java + expires)},
		{scripts.FairLockRelease, "waits alone", words(other + place("me:1", later) + expires), lines, leave, nil},
		{scripts.FairLockRelease, "waits before the dead", words(other + place("me:1", later) + place("dead:1", gone) + expires), lines, leave, words(other + place("dead:1", gone) + expires)},
		{scripts.FairLockRelease, "by force, and only the dead wait", words(other + place("dead:1", gone) + expires), lines, append(slices.Clone(leave), "force"), words(place("dead:1", gone) + expires)},
		{scripts.FairLockRelease, "by force, and one waits", words(other + place("her:1", later) + expires), lines, append(slices.Clone(leave), "force"), nil},

		{scripts.PermitAcquire, "the last one has expired", words(over + fence), permit, take(0, 1, idC), nil},
		{scripts.PermitAcquire, "the last one of an idle one has expired", words(over + fence), permit, take(8_000, 1, idC), nil},
		{scripts.PermitAcquire, "the last one has expired, and too few are free", words(over + fence), permit, take(0, 2, idB, idC), nil},
		{scripts.PermitAcquire, "the last one has expired, under the same id", words(over + fence), permit, take(0, 1, idA), nil},
		{scripts.PermitAcquire, "the last one has expired, and it counts again", words("SET n 1\n ZADD l " + gone + " " + idA + "\n ZADD l " + gone + " " + idB + fence), permit, take(0, 2, idA, idC), nil},
		{scripts.PermitAcquire, "free, all keys there", words(held + fence), permit, take(0, 1, idC), nil},
		{scripts.PermitsAcquire, "twice of one semaphore, all keys there", words(held + fence), append(shared, shared...), []any{"PUBLISH", 60_000, 0, 1, 0, "", 30_000, 1, "c", idB, "c", idC}, nil},
		{scripts.PermitRelease, "the last one", words("SET n 2\n ZADD l " + later + " " + idA), []string{"n", "l"}, []any{"PUBLISH", "c", 0, 0, idA}, nil},
		{scripts.PermitRelease, "the last ones", words("SET n 2\n ZADD l " + later + " " + idA + "\n ZADD l " + later + " " + idB), []string{"n", "l"}, []any{"PUBLISH", "c", 1, 0, idA, idB}, nil},
		{scripts.PermitRelease, "the last one of an idle one", words("SET n 2 PX 9000\n ZADD l " + later + " " + idA + "\n PEXPIRE l 9000"), []string{"n", "l"}, []any{"PUBLISH", "c", 0, 8_000, idA}, nil},
		{scripts.PermitsRelease, "the last of one semaphore, and one that is not held", words(held), []string{"n", "l", "n", "l"}, []any{"PUBLISH", 0, "c", 0, idA, "c", 0, idB}, nil},
		{scripts.PermitState, "the last one has expired", words(over), []string{"n", "l"}, []any{"PUBLISH", "c"}, nil},
		{scripts.PermitRenew, "held, of an idle one, all keys there", words(held + "\n PEXPIRE n 9000\n PEXPIRE l 9000"), []string{"l", "n"}, []any{"GT", 8_000, 300_000, 1, idA}, nil},
		{scripts.PermitList, "all keys there", words(held + fence + "\n ZADD n:waiting 1 a:1"), []string{"n", "l", "f"}, []any{1000, "c:n"}, nil},

		{scripts.SemAcquire, "of an idle one, all keys there", counting, []string{"n", "p", "o"}, []any{7, 6, 60_000, "PUBLISH", "c", 8_000, "", 2}, nil},
		{scripts.SemsAcquire, "twice of one semaphore, all keys there", counting, []string{"n", "p", "n", "p"}, []any{60_000, "PUBLISH", 0, "", 7, 6, "c", 2, 8, 7, "c", 1}, nil},
		{scripts.SemsRelease, "twice of one semaphore, all keys there", counting, []string{"n", "p", "n", "p"}, []any{60_000, "PUBLISH", 0, 0, 0, "c", "", 7, 2, "c", "", 8, 1}, nil},
		{scripts.SemRelease, "of an idle one, all keys there", counting, []string{"n", "p", "o"}, []any{60_000, "PUBLISH", "c", 8_000, "", 7, 2, 0, 0}, nil},

		{scripts.RateLog, "all has expired", slices.Concat(log("0", 90_000)), rated, []any{"10", -1, 0, 0, 0, x}, nil},
		{scripts.RateLog, "all has expired, kept alive", log("600000", 90_000), rated, []any{"10", -1, 0, 0, 0, x}, nil},
		{scripts.RateLog, "all has expired, counted", log("0", 90_000), rated, []any{"", -1, 0, 0, 0, x}, nil},
		{scripts.RateLog, "much has expired", many, rated, []any{"10", -1, 0, 0, 0, x}, nil},
		{scripts.RateLog, "all has expired, and too many are wanted", log("600000", 90_000), rated, []any{"10", -1, 0, 0, 0, member("x", 11)}, nil},
		{scripts.RateLog, "all has expired, in part", log("600000", 90_000), rated, []any{"10", -3, 0, 0, 0, member("x", 11)}, nil},
		{scripts.RateLog, "all lies too far ahead", log("0", -3_600_000), rated, []any{"10", -1, 0, 0, 0, member("x", 9)}, nil},
		{scripts.RateLog, "all lies too far ahead, kept alive", log("600000", -3_600_000), rated, []any{"10", -1, 0, 0, 0, member("x", 9)}, nil},
		{scripts.RateLog, "all is given back", log("0", 30_000), rated, []any{"10", -1, 0, 0, 1, member("old", 3), 0}, nil},
		{scripts.RateLog, "all is given back, kept alive", log("600000", 30_000), rated, []any{"10", -1, 0, 0, 1, member("old", 3), 0}, nil},
		{scripts.RateLog, "all is given back, and more is wanted", log("600000", 30_000), rated, []any{"10", 0, 20_000, 0, 1, member("old", 3), 0, x}, nil},
		{scripts.RateLog, "one client's, of a limit set before", append(log("600000", 30_000), words("HSET c type 1 epoch 7\n SET v 4@6")...), rated, []any{"10", -1, 0, 1, 0, x}, nil},
		{scripts.RateLog, "one client's, all has expired", append(log("600000", 90_000), words("HSET c type 1 epoch 7\n SET v 4@7")...), rated, []any{"10", -1, 0, 1, 0, x}, nil},
		{scripts.RateSet, "anew for each client", append(log("600000", 30_000), words("HSET c type 1 epoch 7")...), rated, []any{"set", 20, 60_000, 1, 0, 0}, nil},
		{scripts.RateSet, "anew, kept alive", log("600000", 30_000), rated, []any{"set", 20, 60_000, 0, 600_000, 0}, nil},
		{scripts.RateSet, "anew, without a keep-alive", log("600000", 30_000), rated, []any{"set", 20, 60_000, 0, 0, 0}, nil},
		{scripts.RateSet, "when all has expired", log("0", 90_000), rated, []any{"update", 20, 60_000, 0, 600_000, 1}, nil},
	}
}

func lockScenarios(now int64) []scenario {
	const (
		free  = ""
		mine  = "HSET n me:1 1\n PEXPIRE n 5000"
		other = "HSET n you:1 1\n PEXPIRE n 5000"
		part  = "HSET n you:1:s0 1\n PEXPIRE n 5000"
		fence = "\n SET f 7 PX 5000"

		others = "HSET n3 you:1 1\n HSET n4 me:4 1\n PEXPIRE n4 5000\n SET n5 1"
	)
	names := []string{"n1", "n2", "n3", "n4", "n5"}
	acquire, release := scripts.LockAcquire, scripts.LockRelease
	plain, fenced, least := []any{"me:1", 30_000}, []any{"me:1", 30_000, 60_000, 5}, []any{"me:1", 30_000, 60_000, 0, 20_000}
	endless := "HSET n me:1 " + ms(now+4000)
	soon := endless + "\n PEXPIRE n 5000"
	ago := ms(now - 1_000)
	line := func(waiters ...string) string {
		state := "\n"
		for _, waiter := range waiters {
			state += "ZADD {n}:waiting " + ago + " " + waiter + "\n"
		}
		return state + "PEXPIRE {n}:waiting 15000"
	}
	channel := scripts.LockChannel("n")
	const kept, java = "HSET n next a:1\n PEXPIRE n 5000", "HSET n java:1 2\n PEXPIRE n 5000"
	inLine := []any{"me:1", 30_000, "", "", "", "a:1", 100, 15_000, "PUBLISH", channel}
	fencedInLine := append(slices.Clone(fenced), "", "a:1", 100, 15_000, "PUBLISH", channel)
	return []scenario{
		{acquire, "kept for it", words(kept + line("b:1")), []string{"n"}, inLine, nil},
		{acquire, "kept for it, fenced", words(kept + fence + line("a:1")), []string{"n", "f"}, fencedInLine, nil},
		{acquire, "kept for another, first in line", words("HSET n next b:1\n PEXPIRE n 5000"), []string{"n"}, inLine, nil},
		{acquire, "free, in line", words(line("a:1", "b:1")), []string{"n"}, inLine, nil},
		{acquire, "another's, first in line", words(other), []string{"n"}, inLine, nil},
		{acquire, "Java's, first in line", words(java), []string{"n"}, inLine, nil},
		{acquire, "another's, behind others", words(other + line("b:1", "gone:1")), []string{"n"}, inLine, nil},
		{release, "mine, one waits", words(mine + line("b:1")), []string{"n"}, []any{"me:1", "PUBLISH"}, nil},
		{release, "mine, some wait and some are gone", words(mine + line("a:1", "b:1", "gone:1")), []string{"n"}, []any{"me:1", "PUBLISH"}, nil},
		{release, "mine, all are gone", words(mine + line("gone:1", "gone:2")), []string{"n"}, []any{"me:1", "PUBLISH"}, nil},
		{scripts.LocksRelease, "mine, some wait", words(mine + line("a:1", "b:1")), []string{"n", "n2"}, []any{
			"PUBLISH", "me:1", "me:2",
		}, nil},
		{scripts.LockKeep, "mine, before the end of the minimum, some wait", words(soon + line("a:1", "b:1")), []string{"n"}, []any{"me:1", "PUBLISH", channel}, nil},
		{scripts.LockKeep, "mine, after the end of the minimum, some wait", words(mine + line("a:1", "b:1")), []string{"n"}, []any{"me:1", "PUBLISH", channel}, nil},
		{scripts.LockForce, "another's, some wait", words(other + line("a:1", "b:1")), []string{"n"}, []any{"PUBLISH", channel, "clients:"}, nil},
		{scripts.LockForce, "kept for a waiter", words(kept), []string{"n"}, []any{"PUBLISH", channel, "clients:"}, nil},
		{scripts.LockLeave, "had been woken", words(kept + line("b:1")), []string{"n"}, []any{"a:1", "PUBLISH", channel, 0}, nil},
		{scripts.LockLeave, "had been woken, read/write", words("HSET n mode write next a:1\n PEXPIRE n 5000" + line("b:1")), []string{"n"}, []any{"a:1", "PUBLISH", channel, 1}, nil},
		{scripts.LockLeave, "was first", words(other + line("a:1", "b:1")), []string{"n"}, []any{"a:1", "PUBLISH", channel, 0}, nil},
		{scripts.LockLeave, "was not in line", words(other + line("b:1")), []string{"n"}, []any{"a:1", "PUBLISH", channel, 0}, nil},
		{acquire, "free", words(free), []string{"n"}, plain, nil},
		{acquire, "mine", words(mine), []string{"n"}, plain, nil},
		{acquire, "another's", words(other), []string{"n"}, plain, nil},
		{acquire, "free, fenced", words(free), []string{"n", "f"}, fenced, nil},
		{acquire, "free, fenced before", words(free + fence), []string{"n", "f"}, fenced, nil},
		{acquire, "free, fenced by Java before", words(free + "SET f 7"), []string{"n", "f"}, fenced, nil},
		{acquire, "mine, the fence lost", words(mine), []string{"n", "f"}, fenced, nil},
		{acquire, "mine, fenced", words(mine + fence), []string{"n", "f"}, fenced, nil},
		{release, "mine", words(mine), []string{"n"}, []any{"me:1", "PUBLISH"}, nil},
		{release, "another's", words(other), []string{"n"}, []any{"me:1", "PUBLISH"}, nil},
		{release, "mine, with tokens to return", words(mine + fence), []string{"n", "f"}, []any{"me:1", "PUBLISH", 7, 3}, words(fence)},
		{release, "mine, sharded", words(mine), []string{"n"}, []any{"me:1", "SPUBLISH"}, nil},
		{acquire, "free, with a minimum", words(free), []string{"n"}, least, nil},
		{acquire, "free, fenced, with a minimum", words(free), []string{"n", "f"}, least, nil},
		{acquire, "mine, with a minimum", words(mine), []string{"n"}, least, nil},
		{scripts.LockKeep, "mine, before the end of the minimum", words(soon), []string{"n"}, []any{"me:1", "PUBLISH", "c"}, nil},
		{scripts.LockKeep, "mine, without an expiry", words(endless), []string{"n"}, []any{"me:1", "PUBLISH", "c"}, nil},
		{scripts.LockKeep, "mine, after the end of the minimum", words(mine), []string{"n"}, []any{"me:1", "SPUBLISH", "c"}, nil},
		{scripts.LockKeep, "another's", words(other), []string{"n"}, []any{"me:1", "PUBLISH", "c"}, nil},
		{scripts.LocksAcquire, "two free, another's, mine, no lock", words(others), names, []any{
			30_000, "me:1", "me:2", "me:3", "me:4", "me:5",
		}, nil},
		{scripts.LocksRelease, "mine, another's, no lock", words(others), names[2:], []any{
			"PUBLISH", "me:3", "me:4", "me:5",
		}, nil},
		{scripts.LockForce, "another's", words(other), []string{"n"}, []any{"PUBLISH", "c", "clients:"}, nil},
		{scripts.LockForce, "another's, sharded", words(other), []string{"n"}, []any{"SPUBLISH", "c", "clients:"}, nil},
		{scripts.LockForce, "a part", words(part), []string{"n"}, []any{"PUBLISH", "c", "clients:"}, nil},
		{scripts.LockForce, "a part that is marked", words(part), []string{"n"}, []any{"PUBLISH", "c", "clients:", "you:1:s0"}, nil},
		{scripts.LockRegain, "free", words(free), []string{"n", "f"}, plain, nil},
		{scripts.LockRegain, "mine", words(mine), []string{"n", "f"}, plain, nil},
		{scripts.LockRegain, "another's", words(other), []string{"n", "f"}, plain, nil},
		{scripts.LockRegain, "freed by force", words(fence), []string{"n", "f"}, plain, nil},
		{scripts.LockRenew, "mine and another's", words(mine + "\n HSET n2 you:1 1"), []string{"n", "n2"}, []any{"me:1", 30_000, "me:2", 30_000}, nil},
	}
}

func stringScenarios(now int64) []scenario {
	const (
		uuid  = "01234567-89ab-4def-8123-456789abcdef"
		mine  = "SET n " + uuid + ":1 PX 5000"
		other = "SET n " + uuid + ":2 PX 5000"
		peer  = "SET n 9f86d081884c7d659a2feaa0c55ad015 PX 5000"
		fence = "\n SET f 7 PX 5000"
	)
	id, one, both := uuid+":1", []string{"n"}, []string{"n", "f"}
	line := func(state string, waiters ...string) [][]any {
		for _, waiter := range waiters {
			state += "\nZADD n:waiting " + ms(now-1_000) + " " + waiter + "\nPEXPIRE n:waiting 15000"
		}
		return words(state)
	}
	kept := func(waiter string, state [][]any) [][]any {
		return append(state, []any{"SET", "n", "next " + waiter, "PX", 5_000})
	}
	plain, fenced := []any{id, 30_000}, []any{id, 30_000, 60_000, 5}
	inLine := []any{id, 30_000, "", "", "a:1", 100, 15_000, "PUBLISH", "c:n"}
	fencedInLine := append(slices.Clone(fenced), "a:1", 100, 15_000, "PUBLISH", "c:n")
	release, force, leave := []any{id, "PUBLISH", "c:n"}, []any{"PUBLISH", "c:n", "clients:"}, []any{"a:1", "PUBLISH", "c:n"}
	acquire := scripts.StringAcquire
	return []scenario{
		{acquire, "free", nil, one, plain, nil},
		{acquire, "mine", words(mine), one, plain, nil},
		{acquire, "another's", words(other), one, plain, nil},
		{acquire, "a peer's", words(peer), one, plain, nil},
		{acquire, "free, fenced", nil, both, fenced, nil},
		{acquire, "free, fenced before", words(fence), both, fenced, nil},
		{acquire, "free, fenced for ever before", words("SET f 7"), both, fenced, nil},
		{acquire, "mine, fenced", words(mine + fence), both, fenced, nil},
		{acquire, "mine, the fence lost", words(mine), both, fenced, nil},
		{acquire, "kept for it", kept("a:1", line("", "b:1")), one, inLine, nil},
		{acquire, "kept for it, fenced", kept("a:1", line(fence, "b:1")), both, fencedInLine, nil},
		{acquire, "kept for another", kept(uuid+":7", nil), one, inLine, nil},
		{acquire, "free, in line", line("", "a:1", "b:1"), one, inLine, nil},
		{acquire, "another's, first in line", words(other), one, inLine, nil},
		{acquire, "a peer's, first in line", words(peer), one, inLine, nil},
		{acquire, "a peer's, behind one", line(peer, "Z:1", "a:1"), one, inLine, nil},
		{acquire, "a peer's, behind one that is gone", line(peer, "Gone:1", "a:1", "b:1"), one, inLine, nil},
		{scripts.StringRelease, "mine", words(mine), one, release, nil},
		{scripts.StringRelease, "mine, sharded", words(mine), one, []any{id, "SPUBLISH", "c"}, nil},
		{scripts.StringRelease, "another's", words(other), one, release, nil},
		{scripts.StringRelease, "mine, with tokens to return", words(mine + fence), both, append(slices.Clone(release), 7, 3), words(fence)},
		{scripts.StringRelease, "mine, some wait and some are gone", line(mine, "a:1", "b:1", "gone:1"), one, release, nil},
		{scripts.StringRelease, "mine, all are gone", line(mine, "gone:1", "gone:2"), one, release, nil},
		{scripts.StringRenew, "mine, another's and no string", words(mine + "\n SET n2 x PX 5000\n HSET n3 a 1"), []string{"n", "n2", "n3"}, []any{id, 30_000, id, 30_000, id, 30_000}, nil},
		{scripts.StringForce, "free", nil, one, force, nil},
		{scripts.StringForce, "another's, some wait", line(other, "a:1", "b:1"), one, force, nil},
		{scripts.StringForce, "another's, sharded", words(other), one, []any{"SPUBLISH", "c", "clients:"}, nil},
		{scripts.StringForce, "a peer's", words(peer), one, force, nil},
		{scripts.StringForce, "a peer's that has the form of a kept one", kept("x", nil), one, force, nil},
		{scripts.StringForce, "kept for a waiter", kept(uuid+":7", nil), one, force, nil},
		{scripts.StringLeave, "had been woken", kept("a:1", line("", "b:1")), one, leave, nil},
		{scripts.StringLeave, "was first", line(other, "a:1", "b:1"), one, leave, nil},
		{scripts.StringLeave, "was first behind a peer", line(peer, "a:1", "b:1"), one, leave, nil},
		{scripts.StringLeave, "was not in line", line(other, "b:1"), one, leave, nil},
	}
}

func rwScenarios() []scenario {
	const (
		free   = ""
		mine   = "HSET n mode read me:1 1\n PEXPIRE n 5000\n SET t:me:1:rwlock_timeout:1 1 PX 5000"
		reads  = "HSET n mode read you:1 1\n PEXPIRE n 5000\n SET t:you:1:rwlock_timeout:1 1 PX 5000"
		longer = "HSET n mode read you:1 1\n PEXPIRE n 60000\n SET t:you:1:rwlock_timeout:1 1 PX 60000"
		writes = "HSET n mode write me:1:write 1\n PEXPIRE n 5000"
		fence  = "\n SET f 7 PX 5000"
	)
	timeout := "t:me:1:rwlock_timeout:1"
	read, write := scripts.ReadAcquire, scripts.WriteAcquire
	both := []string{"n", timeout}
	reader := []any{"me:1", 30_000}
	done := []any{"me:1", "PUBLISH", "c", "t"}
	wrote := []any{"me:1:write", "PUBLISH", "c"}
	crowd := mine + "\n PEXPIRE n 90000\n PEXPIRE " + timeout + " 90000"
	for id := range strings.FieldsSeq("a b c d e f g h i j k l m n o p q r") {
		crowd += "\n HSET n " + id + " 1\n SET t:" + id + ":rwlock_timeout:1 1 PX 5000"
	}
	inLine := []any{"me:1:write", 30_000, "", "", "a:1", 100, 15_000, "PUBLISH", "c:n"}
	readerInLine := []any{"me:1", 30_000, "r", 100, 15_000, "PUBLISH", "c:n"}
	const line = "\n ZADD n:waiting 1 a:1\n ZADD n:waiting 2 r\n ZADD n:waiting 3 b:1\n PEXPIRE n:waiting 15000"
	const behind = "\n ZADD n:waiting 1 r\n ZADD n:waiting 3 b:1\n PEXPIRE n:waiting 15000"
	doneInLine, wroteInLine := []any{"me:1", "PUBLISH", "c:n", "t"}, []any{"me:1:write", "PUBLISH", "c:n"}
	return []scenario{
		{write, "kept for it", words("HSET n mode write next a:1\n PEXPIRE n 5000" + line), []string{"n"}, inLine, nil},
		{write, "kept for readers, in line", words("HSET n mode read next r\n PEXPIRE n 5000" + line), []string{"n"}, inLine, nil},
		{write, "another writes, first in line", words("HSET n mode write you:1:write 0\n PEXPIRE n 5000"), []string{"n"}, inLine, nil},
		{write, "free, in line", words(line), []string{"n"}, inLine, nil},
		{read, "kept for readers", words("HSET n mode read next r\n PEXPIRE n 5000" + line), both, readerInLine, nil},
		{read, "free, in line", words(behind), both, readerInLine, nil},
		{read, "another writes, in line", words("HSET n mode write you:1:write 0\n PEXPIRE n 5000"), both, readerInLine, nil},
		{scripts.ReadRelease, "the last, a writer waits", words(mine + line), both, doneInLine, nil},
		{scripts.ReadRelease, "the last, the others are dead, a writer waits", words(mine + "\n HSET n dead:1 1" + line), both, doneInLine, words("HSET n mode read dead:1 1\n PEXPIRE n 5000")},
		{scripts.ReadRelease, "beside a shorter one, a writer waits", words(reads + "\n HSET n me:1 1\n PEXPIRE n 60000\n SET " + timeout + " 1 PX 60000" + line), both, doneInLine, nil},
		{scripts.WriteRelease, "mine, readers wait", words(writes + behind), []string{"n"}, wroteInLine, nil},
		{scripts.WriteRelease, "mine, a writer waits", words(writes + line), []string{"n"}, wroteInLine, nil},
		{scripts.WriteRelease, "mine, it reads too, readers wait", words(writes + "\n HSET n me:1 1" + behind), []string{"n"}, wroteInLine, nil},
		{scripts.Downgrade, "mine, readers wait", words(writes + behind), both, []any{"me:1:write", "me:1", 30_000, "PUBLISH", "c:n"}, nil},
		{scripts.RWForce, "a writer's, some wait", words(writes + line), []string{"n"}, []any{"write", "PUBLISH", "c:n", "clients:"}, nil},
		{scripts.RWForce, "kept for a waiter", words("HSET n mode write next a:1\n PEXPIRE n 5000"), []string{"n"}, []any{"write", "PUBLISH", "c:n", "clients:"}, nil},
		{read, "free", words(free), both, reader, nil},
		{read, "mine", words(mine), both, reader, nil},
		{read, "another reads", words(reads), both, reader, nil},
		{read, "another reads for longer", words(longer), both, reader, nil},
		{read, "another writes", words(writes), both, reader, nil},
		{scripts.ReadRenew, "mine", words(mine), both, reader, nil},
		{scripts.ReadRenew, "mine, the timeout gone", words("HSET n mode read me:1 1\n PEXPIRE n 5000"), both, reader, nil},
		{scripts.ReadRenew, "mine beside a longer one", words(longer + "\n HSET n me:1 1\n SET " + timeout + " 1 PX 5000"), both, reader, nil},
		{scripts.ReadRelease, "the last", words(mine), both, done, nil},
		{scripts.ReadRelease, "beside one that reads for longer", words(longer + "\n HSET n me:1 1\n SET " + timeout + " 1 PX 5000"), both, done, nil},
		{scripts.ReadRelease, "beside a shorter one", words(reads + "\n HSET n me:1 1\n PEXPIRE n 60000\n SET " + timeout + " 1 PX 60000"), both, done, nil},
		{scripts.ReadRelease, "beside a dead one", words(mine + "\n HSET n dead:1 1"), both, done, words("HSET n mode read dead:1 1\n PEXPIRE n 5000")},
		{scripts.ReadRelease, "beside many", words(crowd), both, done, nil},
		{scripts.ReadRelease, "not held", words(reads), both, done, nil},
		{write, "free", words(free), []string{"n"}, []any{"me:1:write", 30_000}, nil},
		{write, "mine", words(writes), []string{"n"}, []any{"me:1:write", 30_000}, nil},
		{write, "others read", words(reads), []string{"n"}, []any{"me:1:write", 30_000}, nil},
		{write, "free, fenced", words(free), []string{"n", "f"}, []any{"me:1:write", 30_000, 60_000, 5}, nil},
		{write, "free, fenced before", words(fence), []string{"n", "f"}, []any{"me:1:write", 30_000, 60_000, 5}, nil},
		{write, "free, fenced by Java before", words("SET f 7"), []string{"n", "f"}, []any{"me:1:write", 30_000, 60_000, 5}, nil},
		{scripts.WriteRelease, "mine", words(writes), []string{"n"}, wrote, nil},
		{scripts.WriteRelease, "mine, with tokens to return", words(writes + fence), []string{"n", "f"}, append(wrote[:3:3], 7, 3), words(fence)},
		{scripts.WriteRelease, "mine, and it reads", words(writes + "\n HSET n me:2 1"), []string{"n"}, wrote, nil},
		{scripts.Downgrade, "mine", words(writes), both, []any{"me:1:write", "me:1", 30_000, "PUBLISH", "c"}, nil},
		{scripts.Downgrade, "again", words(mine), both, []any{"me:1:write", "me:1", 30_000, "PUBLISH", "c"}, nil},
		{scripts.RWForce, "readers", words(reads), []string{"n"}, []any{"read", "PUBLISH", "c", "clients:"}, nil},
		{scripts.RWForce, "none", words(free), []string{"n"}, []any{"read", "PUBLISH", "c", "clients:"}, nil},
	}
}

func fairLockScenarios(now int64) []scenario {
	keys := []string{"n", "q", "t", "a"}
	wait := []any{"me:1", 30_000, 1, 300_000, 15_000, "PUBLISH", "c"}
	fenced := append(append([]any{}, wait...), 60_000)
	try := []any{"me:1", 30_000, 0, 300_000, 15_000, "PUBLISH", "c"}
	leave := []any{"me:1", 300_000, "PUBLISH", "c"}
	const mine, other = "HSET n me:1 1\n PEXPIRE n 5000", "HSET n you:1 1\n PEXPIRE n 5000"
	// place puts an id into the line, and expires says that the line's keys end.
	place := func(id string, alive int64) string {
		return "\n RPUSH q " + id + "\n ZADD t " + ms(now+400_000) + " " + id + "\n ZADD a " + ms(alive) + " " + id
	}
	java := "\n RPUSH q java:1\n ZADD t " + ms(now+900_000) + " java:1"
	const expires = "\n PEXPIRE q 9000\n PEXPIRE t 9000\n PEXPIRE a 9000"
	later := now + 100_000
	return []scenario{
		{scripts.FairLockAcquire, "free", nil, keys, wait, nil},
		{scripts.FairLockAcquire, "free, fenced", nil, append(keys, "f"), fenced, nil},
		{scripts.FairLockAcquire, "free, fenced by Java before", words("SET f 7"), append(keys, "f"), fenced, nil},
		{scripts.FairLockAcquire, "mine", words(mine), keys, wait, nil},
		{scripts.FairLockAcquire, "another's", words(other), keys, wait, nil},
		{scripts.FairLockAcquire, "another's, and no wait", words(other), keys, try, nil},
		{scripts.FairLockAcquire, "another's, and one waits", words(other + place("her:1", later) + expires), keys, wait, nil},
		{scripts.FairLockAcquire, "another's, with a place", words(other + place("me:1", later) + expires), keys, wait, nil},
		{scripts.FairLockAcquire, "free, and it comes first", words(place("me:1", later) + place("her:1", later) + expires), keys, wait, nil},
		{scripts.FairLockAcquire, "free, it comes first, fenced", words(place("me:1", later) + expires), append(keys, "f"), fenced, nil},
		{scripts.FairLockAcquire, "free, and another comes first", words(place("her:1", later) + place("me:1", later) + expires), keys, wait, nil},
		{scripts.FairLockAcquire, "free, with Java behind it", words(place("me:1", later) + java + expires), keys, wait, nil},
		{
			scripts.FairLockAcquire, "free, and the first is dead", words(place("dead:1", now-1) + place("her:1", later) + place("me:1", later) + expires),
			keys, wait, words(place("her:1", later) + place("me:1", later) + expires),
		},
		{scripts.FairLockRelease, "mine", words(mine), keys, leave, nil},
		{scripts.FairLockRelease, "mine, and one waits", words(mine + place("her:1", later) + expires), keys, leave, nil},
		{scripts.FairLockRelease, "waits first", words(other + place("me:1", later) + place("her:1", later) + expires), keys, leave, nil},
		{scripts.FairLockRelease, "waits last", words(other + place("her:1", later) + place("me:1", later) + expires), keys, leave, nil},
		{scripts.FairLockRelease, "waits with Java behind it", words(other + place("me:1", later) + java + expires), keys, leave, nil},
		{scripts.FairLockRelease, "by force", words(other + place("her:1", later) + expires), keys, append(append([]any{}, leave...), "clients:"), nil},
	}
}

// semaphorePlace is the argument with which the waiter a:1 asks for permits from the line.
const semaphorePlace = "a:1 15000 =100"

// semaphoreLine is the state of a line with waiters that have waited for a second and want one permit, except b:9, which wants nine. kept is
// what is kept.
func semaphoreLine(now int64, kept string, waiters ...string) (state [][]any) {
	for _, waiter := range waiters {
		score := ms(now-1_000) + ".001"
		if waiter == "b:9" {
			score = ms(now-1_000) + ".009"
		}
		state = append(state, []any{"ZADD", "n:waiting", score, waiter})
	}
	if len(waiters) > 0 {
		state = append(state, []any{"PEXPIRE", "n:waiting", 15_000})
	}
	if kept != "" {
		state = append(state, []any{"SET", "n:kept", ms(now+100_000) + " " + kept, "PX", 100_000})
	}
	return state
}

// inLines returns calls of each script with a line, and with permits that are kept.
func inLines(now int64) (all []scenario) {
	leased, record, fence := []string{"n", "l"}, []string{"n", "l", "r", "x"}, []string{"n", "l", "f"}
	calls := []string{"n", "p"}
	held := func(free int) [][]any {
		return words("SET n " + fmt.Sprint(free) + "\n ZADD l " + ms(now+100_000) + " " + idA + "\n ZADD l " + ms(now+200_000) + " " + idB)
	}
	over := func(free int) [][]any { return append(held(free), []any{"ZADD", "l", ms(now - 1), idC}) }
	ask := func(place string) []any {
		return []any{"PUBLISH", "c:n", 60_000, 0, 1, 0, place, 30_000, 1, "0123456789abcdef"}
	}
	shared := []any{"PUBLISH", 60_000, 0, 1, 0, "", 30_000, 1, "c:n", "0123456789abcdef"} // ask("") for many
	count := func(place string) []any { return []any{7, 6, 60_000, "PUBLISH", "c:n", 0, place, 1} }
	for _, in := range []struct {
		what string
		line [][]any
	}{
		{"some wait", semaphoreLine(now, "", "a:1", "b:1")},
		{"some wait, and some are gone", semaphoreLine(now, "", "gone:1", "b:1", "gone:2")},
		{"all are gone", semaphoreLine(now, "1 1 gone:1", "gone:1")},
		{"some is kept for a waiter", semaphoreLine(now, "1 1 a:1", "b:1")},
		{"some is kept for one that wants more than all", semaphoreLine(now, "2 9 b:9", "b:9", "a:1")},
		{"the first wants more than all", semaphoreLine(now, "", "b:9", "a:1")},
	} {
		what, line := in.what, in.line
		with := func(state [][]any) [][]any { return slices.Concat(state, line) }
		all = append(all, []scenario{
			{scripts.PermitAcquire, "in line, free, " + what, with(held(3)), fence, ask(semaphorePlace), nil},
			{scripts.PermitAcquire, "in line, not free, " + what, with(held(0)), fence, ask(semaphorePlace), nil},
			{scripts.PermitAcquire, "in line, expired, " + what, with(over(0)), fence, ask(semaphorePlace), nil},
			{scripts.PermitAcquire, "not in line, some free, " + what, with(held(1)), fence, ask(""), nil},
			{scripts.PermitsAcquire, "one, " + what, with(held(1)), append(fence, "n"), shared, nil},
			{scripts.PermitRelease, what, with(held(0)), leased, []any{"PUBLISH", "c:n", 0, 0, idA}, nil},
			{scripts.PermitRelease, "two, " + what, with(held(0)), leased, []any{"PUBLISH", "c:n", 1, 0, idA, idB}, nil},
			{scripts.PermitsRelease, what, with(held(0)), leased, []any{"PUBLISH", 0, "c:n", 0, idA}, nil},
			{scripts.PermitState, "some have expired, " + what, with(over(0)), leased, []any{"PUBLISH", "c:n"}, nil},
			{scripts.PermitEdit, "add, " + what, with(held(0)), record, []any{"add", 5, "PUBLISH", "c:n", 60_000, 0}, nil},
			{scripts.SemAcquire, "in line, free, " + what, with(words("SET n 3")), calls, count(semaphorePlace), nil},
			{scripts.SemAcquire, "in line, not free, " + what, with(words("SET n 0")), calls, count(semaphorePlace), nil},
			{scripts.SemAcquire, "not in line, some free, " + what, with(words("SET n 1")), calls, count(""), nil},
			{scripts.SemRelease, what, with(words("SET n 0")), calls, []any{60_000, "PUBLISH", "c:n", 0, "", 7, 2, 0, 0}, nil},
			{scripts.SemsAcquire, "some free, " + what, with(words("SET n 1")), calls, []any{60_000, "PUBLISH", 0, "", 7, 6, "c:n", 1}, nil},
			{scripts.SemsRelease, what, with(words("SET n 0")), calls, []any{60_000, "PUBLISH", 0, 0, 0, "c:n", "", 7, 2}, nil},
			{scripts.SemEdit, "add, " + what, with(words("SET n 0")), []string{"n", "r", "x", "o"}, []any{"add", 5, "PUBLISH", "c:n", 60_000, 0, 50_000}, nil},
			{scripts.SemDelete, what, with(words("SET n 0")), []string{"n", "r", "o"}, []any{"PUBLISH", "c:n", 60_000}, nil},
			{scripts.SemLeave, "none free, " + what, with(words("SET n 0")), []string{"n"}, []any{"a:1", "PUBLISH", "c:n"}, nil},
			{scripts.SemLeave, "some free, " + what, with(words("SET n 2")), []string{"n"}, []any{"a:1", "PUBLISH", "c:n"}, nil},
		}...)
	}
	return all
}

func semScenarios() []scenario {
	calls, idle := []string{"n", "p"}, []string{"n", "p", "o"}
	record := []string{"n", "r", "x", "o"}
	full, held := words("SET n 5 PX 9000"), words("SET n 3")
	full = append(full, []any{"SET", "o", "5 1", "PX", 9000})
	held = append(held, []any{"SET", "o", "5 1"})
	several := words("SET n1 3 PX 9000\n SET n2 3\n SET p3 x\n SET n3 3\n HSET p4 a 1\n SET n4 3\n SET n5 0\n SET n7 x\n HSET n8 a 1")
	several = append(several, []any{"SET", "p2", "6 1 2", "PX", 9000})
	var pairs []string
	takeEach, releaseEach := []any{60_000, "PUBLISH", 0, ""}, []any{60_000, "PUBLISH", 0, 0, 0}
	for i := 1; i <= 8; i++ {
		pairs = append(pairs, fmt.Sprint("n", i), fmt.Sprint("p", i))
		takeEach, releaseEach = append(takeEach, 7, 6, "c", 2), append(releaseEach, "c", "", 7, 2)
	}
	return []scenario{
		{scripts.SemsAcquire, "of several semaphores", several, pairs, takeEach, nil},
		{scripts.SemsRelease, "of several semaphores", several, pairs, releaseEach, nil},
		{scripts.SemAcquire, "free", words("SET n 5 PX 9000"), calls, []any{7, 6, 60_000, "PUBLISH", "c", 0, "", 2, 2, 2}, nil},
		{scripts.SemAcquire, "gives back", append(words("SET n 1"), []any{"SET", "p", "6 1 4"}), calls, []any{7, 5, 60_000, "PUBLISH", "c", 0, "", 2}, nil},
		{scripts.SemAcquire, "none set", nil, calls, []any{7, 6, 60_000, "PUBLISH", "c", 0, "", 2}, nil},
		{scripts.SemAcquire, "of an idle one", full, idle, []any{7, 6, 60_000, "PUBLISH", "c", 8_000, "", 2}, nil},
		{scripts.SemAcquire, "none fits an idle one", full, idle, []any{7, 6, 60_000, "PUBLISH", "c", 8_000, "", 9}, nil},
		{scripts.SemRelease, "some", words("SET n 5 PX 9000"), calls, []any{60_000, "PUBLISH", "c", 0, "", 7, 2, 0, 0, 8, 3, 0, 0}, nil},
		{scripts.SemRelease, "none set", nil, calls, []any{60_000, "PUBLISH", "c", 0, "", 7, 2, 0, 0}, nil},
		{scripts.SemRelease, "none set, to expire when idle", nil, idle, []any{60_000, "PUBLISH", "c", 8_000, "", 7, 2, 0, 0}, nil},
		{scripts.SemRelease, "the last one held", held, idle, []any{60_000, "PUBLISH", "c", 8_000, "", 7, 2, 0, 0}, nil},
		{scripts.SemRelease, "too many", words("SET n 5"), calls, []any{60_000, "PUBLISH", "c", 0, "", 7, 2, 0, 6}, nil},
		{scripts.SemEdit, "set", nil, record, []any{"set", 5, "PUBLISH", "c", 60_000, 0, 50_000}, nil},
		{scripts.SemEdit, "set with an idle expiry", nil, record, []any{"set", 5, "PUBLISH", "c", 60_000, 8_000, 50_000}, nil},
		{scripts.SemEdit, "add", words("SET n 5 PX 9000"), record, []any{"add", 5, "PUBLISH", "c", 60_000, 0, 50_000}, nil},
		{scripts.SemEdit, "add to an idle one", held, record, []any{"add", 5, "PUBLISH", "c", 60_000, 8_000, 50_000}, nil},
		{scripts.SemEdit, "add to an idle one, without the option", held, record, []any{"add", 5, "PUBLISH", "c", 60_000, 0, 50_000}, nil},
		{scripts.SemEdit, "drain", words("SET n 5"), record, []any{"drain", 0, "PUBLISH", "c", 60_000, 0, 50_000}, nil},
		{scripts.SemEdit, "drain an idle one", full, record, []any{"drain", 0, "PUBLISH", "c", 60_000, 8_000, 50_000}, nil},
		{scripts.SemDelete, "counting", full, []string{"n", "r", "o"}, []any{"PUBLISH", "c", 60_000}, nil},
		{scripts.SemDelete, "none set", nil, []string{"n", "r", "o"}, []any{"PUBLISH", "c", 60_000}, nil},
	}
}

func permitScenarios(now int64) []scenario {
	held := "SET n 3 PX 9000\n ZADD l " + ms(now+100_000) + " " + idA + "\n PEXPIRE l 9000"
	over := held + "\n ZADD l " + ms(now-1) + " " + idB
	keys, record := []string{"n", "l"}, []string{"n", "l", "r", "x"}
	fence := []string{"n", "l", "f"}
	take := []any{"PUBLISH", "c", 60_000, 0, 10, 0, "", 30_000, 1, idC, 30_000, 9}
	for i := range 9 {
		take = append(take, strings.Repeat(string(rune('d'+i)), 16))
	}
	idle, one := slices.Clone(take), slices.Clone(take[:10])
	idle[3], one[4] = 8_000, 1
	declaring, declared, idleDeclared := []string{"n", "l", "f", "x"}, slices.Clone(take), slices.Clone(idle)
	declared[5], idleDeclared[5] = 20, 20
	token := func(at int64) string { return "\n SET f " + ms(at*1000) + " PX 5000" }
	several := "SET n1 3 PX 9000\n ZADD l1 " + ms(now+100_000) + " " + idB + "\n PEXPIRE l1 9000\n SET n2 3\n SET f2 " + ms(now*1000) + " PX 5000\n SET n3 3\n SET f3 " + ms((now+9_000_000)*1000) +
		"\n ZADD l4 " + ms(now+100_000) + " " + idA + "\n SET n4 3\n SET n5 0\n SET n7 x\n SET n8 3\n SET l8 1\n SET n9 3\n SET f9 x"
	var triples, pairs []string
	takeEach, releaseEach := []any{"PUBLISH", 60_000, 0, 1, 0, "", 30_000, 1}, []any{"PUBLISH", 0}
	for i := 1; i <= 9; i++ {
		name, leases := fmt.Sprint("n", i), fmt.Sprint("l", i)
		triples, pairs = append(triples, name, leases, fmt.Sprint("f", i), name), append(pairs, name, leases)
		takeEach, releaseEach = append(takeEach, "c", idA), append(releaseEach, "c", 0, idA)
	}
	declareEach := slices.Clone(takeEach)
	declareEach[4] = 7
	return []scenario{
		{scripts.PermitsAcquire, "of several semaphores", words(several), triples, takeEach, nil},
		{scripts.PermitsAcquire, "of several declared semaphores", words(several), triples, declareEach, nil},
		{scripts.PermitsRelease, "of several semaphores", words(several + "\n ZADD l1 " + ms(now+100_000) + " " + idA), pairs, releaseEach, nil},
		{scripts.PermitAcquire, "free", words(held), fence, one, nil},
		{scripts.PermitAcquire, "free, without an expiry", words("SET n 3"), fence, one, nil},
		{scripts.PermitAcquire, "free, with a token of this hour", words(held + token(now)), fence, one, nil},
		{scripts.PermitAcquire, "free, with a token ahead of the clock", words(held + token(now+9_000_000)), fence, one, nil},
		{scripts.PermitAcquire, "free, while some have expired", words(over), fence, one, nil},
		{scripts.PermitAcquire, "some", words(held), fence, take, nil},
		{scripts.PermitAcquire, "some of an idle one", words(held), fence, idle, nil},
		{scripts.PermitAcquire, "none of an idle one", words(over), fence, append(append(idle[:4:4], 9, 0, ""), idle[10:]...), nil},
		{scripts.PermitAcquire, "granted before", words(held), fence, []any{"PUBLISH", "c", 60_000, 0, 1, 0, "", 300_000, 1, idA}, nil},
		{scripts.PermitAcquire, "granted before, with none left", words(held + "\n SET n 0"), fence, []any{"PUBLISH", "c", 60_000, 0, 1, 0, "", 300_000, 1, idA}, nil},
		{scripts.PermitAcquire, "some have expired", words(over), fence, []any{"PUBLISH", "c", 60_000, 0, 9, 0, "", 30_000, 9, idC}, nil},
		{scripts.PermitAcquire, "none set", nil, fence, take, nil},
		{scripts.PermitAcquire, "none set, and declared", nil, declaring, declared, words("SET n 20")},
		{scripts.PermitAcquire, "none set, and declared, when leases are left", words(over + "\n DEL n"), declaring, declared, words(over + "\n SET n 18")},
		{scripts.PermitAcquire, "none set, and declared, with an idle expiry", nil, declaring, idleDeclared, words("SET n 20 PX 9000")},
		{scripts.PermitAcquire, "declared and set", words(over), declaring, declared, nil},
		{scripts.PermitRelease, "held", words(held), keys, []any{"PUBLISH", "c", 0, 0, idA, idC}, nil},
		{scripts.PermitRelease, "one that is held", words(held), keys, []any{"PUBLISH", "c", 0, 0, idA}, nil},
		{scripts.PermitRelease, "one that is not held", words(held), keys, []any{"PUBLISH", "c", 0, 0, idC}, nil},
		{scripts.PermitRelease, "held, of an idle one", words(held), keys, []any{"PUBLISH", "c", 0, 8_000, idA, idC}, nil},
		{scripts.PermitRelease, "all or none", words(held), keys, []any{"PUBLISH", "c", 1, 0, idA, idC}, nil},
		{scripts.PermitRelease, "the counter gone", words(held + "\n DEL n"), keys, []any{"PUBLISH", "c", 0, 0, idA}, nil},
		{scripts.PermitRenew, "held", words(held), []string{"l"}, []any{"GT", 0, 300_000, 1, idA, 300_000, 1, idC}, nil},
		{scripts.PermitRenew, "held, of an idle one", words(held), []string{"l", "n"}, []any{"GT", 8_000, 300_000, 1, idA}, nil},
		{scripts.PermitRenew, "shorter", words(held), []string{"l"}, []any{"XX", 0, 3_000, 1, idA}, nil},
		{scripts.PermitEdit, "try", nil, record, []any{"try", 5, "PUBLISH", "c", 60_000, 0}, nil},
		{scripts.PermitEdit, "try with an idle expiry", nil, record, []any{"try", 5, "PUBLISH", "c", 60_000, 8_000}, nil},
		{scripts.PermitEdit, "try, when leases are left", words(held + "\n DEL n"), record, []any{"try", 5, "PUBLISH", "c", 60_000, 0}, nil},
		{scripts.PermitEdit, "set", words(held), record, []any{"set", 5, "PUBLISH", "c", 60_000, 0}, nil},
		{scripts.PermitEdit, "add", words(held), record, []any{"add", 5, "PUBLISH", "c", 60_000, 0}, nil},
		{scripts.PermitEdit, "add to an idle one", words(held), record, []any{"add", 5, "PUBLISH", "c", 60_000, 8_000}, nil},
		{scripts.PermitEdit, "set, when some have expired", words(over), record, []any{"set", 5, "PUBLISH", "c", 60_000, 0}, nil},
		{scripts.PermitState, "some have expired", words(over), keys, []any{"PUBLISH", "c"}, nil},
		{scripts.PermitState, "held", words(held), keys, []any{"PUBLISH", "c"}, nil},
		{scripts.PermitList, "some have expired", words(over), []string{"n", "l", "f"}, []any{1000, "c:n"}, nil},
		{scripts.SemDelete, "plain", words(held), []string{"n", "r", "l"}, []any{"PUBLISH", "c", 60_000}, nil},
	}
}

// fairScenarios are those of permits that nobody overtakes.
func fairScenarios(now int64) []scenario {
	keys := []string{"n", "l", "f"}
	ask := []any{"PUBLISH", "cogwheel_fair:n", 60_000, 0, 1, 0, "a:1 15000 =3000000", 30_000, 1, idC}
	comes := slices.Clone(ask)
	comes[6] = ""
	shared := []any{"PUBLISH", 60_000, 0, 1, 0, "", 30_000, 1, "cogwheel_fair:n", idC}
	many := []any{"PUBLISH", "cogwheel_fair:n", 60_000, 0, 2, 0, "a:1 15000 3000000,0", 30_000, 1, idC, 30_000, 1, strings.Repeat("d", 16)}
	line := func(waiters ...string) string {
		state := "\n"
		for i, waiter := range waiters {
			state += "ZADD n:fair:waiting " + ms(now-80+int64(i)) + ".001 " + waiter + "\n"
		}
		return state + "PEXPIRE n:fair:waiting 15000"
	}
	kept := func(waiter string) []any {
		return []any{"SET", "n:fair:kept", ms(now+100_000) + " 1 1 " + waiter, "PX", 50_000}
	}
	held := "SET n 0\n ZADD l " + ms(now+100_000) + " " + idA
	return []scenario{
		{scripts.PermitAcquire, "fair, free, nobody waits", words("SET n 1"), keys, comes, nil},
		{scripts.PermitAcquire, "fair, free, one waits", words("SET n 1" + line("b:1")), keys, comes, nil},
		{scripts.PermitAcquire, "fair, free, one waits who is gone", words("SET n 1" + line("gone:1", "b:1")), keys, comes, nil},
		{scripts.PermitAcquire, "fair, free, one waits who cannot be counted", words("SET n 1" + line("*gone:1", "b:1")), keys, comes, nil},
		{scripts.PermitAcquire, "fair, free, it came first", words("SET n 1" + line("b:1")), keys, ask, nil},
		{scripts.PermitAcquire, "fair, free, kept for it", append(words("SET n 1"+line("b:1")), kept("a:1")), keys, ask, nil},
		{scripts.PermitAcquire, "fair, free, kept for another", append(words("SET n 1"), kept("b:1")), keys, ask, nil},
		{scripts.PermitAcquire, "fair, two free, its second came later", words("SET n 2" + line("b:1")), keys, many, nil},
		{scripts.PermitAcquire, "fair, none free", words(held), keys, ask, nil},
		{scripts.PermitAcquire, "fair, none free, behind others", words(held + line("b:1", "gone:1")), keys, ask, nil},
		{scripts.PermitRelease, "fair, some wait", words(held + line("a:1", "b:1")), []string{"n", "l"}, []any{"PUBLISH", "cogwheel_fair:n", 0, 0, idA}, nil},
		{scripts.PermitRelease, "fair, more wait in the first", words(held + strings.ReplaceAll(line("a:1", "b:1"), ".001 a", ".501 a")), []string{"n", "l"}, []any{"PUBLISH", "cogwheel_fair:n", 0, 0, idA}, nil},
		{scripts.PermitsAcquire, "fair, one waits", words("SET n 1" + line("b:1")), []string{"n", "l", "f", "n"}, shared, nil},
		{scripts.PermitList, "fair, some wait", words(held + line("a:1", "b:1")), keys, []any{1000, "cogwheel_fair:n"}, nil},
		{scripts.SemLeave, "fair, was first", words("SET n 1" + line("a:1", "b:1")), []string{"n"}, []any{"a:1", "PUBLISH", "cogwheel_fair:n"}, nil},
		{scripts.SemDelete, "fair, some wait", words(held + line("a:1", "b:1")), []string{"n", "r", "l"}, []any{"PUBLISH", "cogwheel_fair:n", 60_000}, nil},
	}
}

func rateScenarios(now int64) []scenario {
	gcra, window, log, all := scripts.RateGCRA, scripts.RateWindow, scripts.RateLog, scripts.RateAll
	sliding, hours := scripts.RateSliding, "SET k "+ms(now/3_600_000+1) // the next one, which does not pass during the test
	key, keys := []string{"k"}, []string{"c", "v", "l"}
	member := func(id string, n byte) string { return "\x10" + fmt.Sprintf("%-16s", id) + string([]byte{n, 0, 0, 0}) }
	entry := func(age int64, id string, n byte) []any { return []any{"ZADD", "l", ms(now - age), member(id, n)} }
	state := func(parts ...[][]any) [][]any { return slices.Concat(parts...) }
	const config = "HSET c rate 10 interval 60000 type 0 keepAliveTime "
	ahead := words("SET k " + ms((now+60_000)*1000) + " PX 60000")
	places := words("SET k " + ms((now+60_000)*1000) + ":11@7:0:" + ms((now+50_000)*1000) + "::1:10000000:0:0:0:1000:0:0 PX 60000")
	holes := words("SET k " + ms((now+60_000)*1000) + ":11@7:0:" + ms((now+50_000)*1000) + "::1:10000000:0:0:0:1000:5000:0:" +
		ms((now+30_000)*1000) + ":0:" + ms((now+30_001)*1000) + ":0 PX 60000")
	plain, kept := words(config+"0"), words(config+"600000\n PEXPIRE c 300000")
	filled := append(words("SET v 4"), entry(90_000, "old", 3), entry(30_000, "a", 2), entry(20_000, "b", 1))
	perClient := append(slices.Clone(kept), words("HSET c type 1 epoch 7")...)
	expiring := words("PEXPIRE c 200000\n PEXPIRE v 200000\n PEXPIRE l 200000")
	noValue, farAhead := words("DEL v"), append(words("SET v -1"), entry(-3_600_000, "far", 5))
	x := member("x", 1)
	return []scenario{
		{gcra, "charged before", ahead, key, []any{1, int64(1e12), 0, 1_000_001, 1, 1000, 0, 1}, nil},
		{gcra, "of no key", nil, key, []any{1, int64(1e12), 0, 1_000_001, 1, 1000, 0, 1}, nil},
		{gcra, "given back in part", words("SET k " + ms((now+60_000)*1000) + "@7:0 PX 60000"), key, []any{
			1, int64(1e12), 0, 1_000_001, 0, "", 0, 1, 7, 0, (now + 60_000) * 1000, 0, 1000, 0, 0,
		}, nil},
		{gcra, "given back in part, after others", words("SET k " + ms((now+60_000)*1000) +
			"@7:9:" + ms((now+30_000)*1000) + ":" + ms((now+50_000)*1000) + ",9 PX 60000"), key, []any{
			1, int64(1e12), 0, 1_000_001, 0, "", 0, 1, 7, 0, (now + 60_000) * 1000, 0, 1000, 0, 0,
		}, nil},
		{gcra, "a place that is given back", places, key, []any{
			1, int64(1e7), 0, 11, 0, "", 0, 1, 7, 0, (now + 50_000) * 1000, 0, 1000, 0, 1,
		}, nil},
		{gcra, "that can be given back", ahead, key, []any{1, int64(1e8), 0, 1_000_001, 1, 1000, 0, 1, 0, 0, 0, 0, 0}, nil},
		{gcra, "for waiters", ahead, key, []any{1, int64(1e7), 0, 11, 1, 1000, 0, 2, 1000, 0, 0, int64(6e7), 0}, nil},
		{gcra, "for waiters, in a hole", holes, key, []any{1, int64(1e7), 0, 11, 1, 1000, 0, 2, 1000, 0, 0, int64(6e7), 0}, nil},
		{gcra, "for waiters, in place of what is given back", holes, key, []any{
			1, int64(1e7), 0, 11, 1, 1000, 0, 2, 1000, 0, 1, 7, 0, (now + 50_000) * 1000, 0, 1000, 0, 1, int64(6e7), 0,
		}, nil},
		{gcra, "of what is owed", holes, key, []any{1, int64(1e7), 0, 11, 1, 1000, 0, 1}, nil},
		{gcra, "a debt", ahead, key, []any{1, int64(1e8), 0, 0, 0, "", 0, 0, int64(1e9), 0, int64(1e8)}, nil},
		{scripts.RatesGCRA, "of a key twice, of no key, of another kind, of a later version, with places", slices.Concat(
			ahead, words("HSET kind a 1\n SET later 9:x PX 60000\n SET places "+places[0][2].(string)+" PX 60000"),
		), []string{"k", "k", "none", "kind", "later", "places"}, []any{1, int64(1e12), 0, 1_000_001, 1, 1000, 0, 1, 1, 1, 1, 1, 1}, nil},
		{gcra, "a probe", ahead, key, []any{1, int64(1e12), 0, 1_000_001, 0}, nil},
		{gcra, "a probe of no key", nil, key, []any{1, int64(1e12), 0, 1_000_001, 0}, nil},
		{window, "a probe", words("SET k 3:100000 PX 90000"), key, []any{10, 100_000, 0, 0}, nil},
		{window, "a probe of no key", nil, key, []any{10, 100_000, 0, 0}, nil},
		{gcra, "of a later version", words("SET k " + ms(now*1000) + ":x PX 60000"), key, []any{1, int64(1e12), 0, 1_000_001, 1, 1000, 0, 1}, nil},
		{window, "of a later version", words("SET k 3:100000:x PX 60000"), key, []any{10, 100_000, 0, 1, 1, 1}, nil},
		{window, "begun", words("SET k 3 PX 100000"), key, []any{10, 100_000, 0, 1, 1, 1}, nil},
		{window, "for those ahead", words("SET k 9 PX 10000"), key, []any{10, 20_000, 18_000, 1, 1, 5, 1}, nil},
		{window, "longer than before", words("SET k 3:10000 PX 9000"), key, []any{10, 100_000, 0, 1, 1, 1}, nil},
		{window, "of no key", nil, key, []any{10, 100_000, 20, 1, 1, 1, 1}, nil},
		{window, "that can be given back", words("SET k 3 PX 100000"), key, []any{10, 100_000, 0, 1, 1, 1, 2}, nil},
		{window, "given back", words("SET k 3:100000@5 PX 90000"), key, []any{10, 100_000, 0, 0, 0, 1, 5, 2}, nil},
		{window, "of another window given back", words("SET k 3:100000@5 PX 90000"), key, []any{10, 100_000, 0, 0, 0, 1, 4, 2}, nil},
		{window, "a debt", words("SET k 3:100000@5 PX 90000"), key, []any{10, 100_000, 0, 0, 0, 0, 7, 10}, nil},
		{window, "a debt in the next window", words("SET k 3:100000@5 PX 90000"), key, []any{10, 100_000, 0, 0, 0, 0, 9, 10}, nil},
		{window, "a debt of no key", nil, key, []any{10, 100_000, 0, 0, 0, 0, 9, 10}, nil},
		{window, "a debt, of a later version", words("SET k 3:100000:x PX 60000"), key, []any{10, 100_000, 0, 0, 0, 0, 9, 10}, nil},
		{sliding, "that can be given back", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 3_600_000, 1, 1, 1, 2}, nil},
		{sliding, "given back", words(hours + ":3:3:3600000@5:1 PX 90000000"), key, []any{10, 3_600_000, 0, 0, 1, 5, now/3_600_000 + 1, 2}, nil},
		{sliding, "of the window before given back", words(hours + ":3:3:3600000@5:0 PX 90000000"), key, []any{10, 3_600_000, 0, 0, 1, 5, now / 3_600_000, 2}, nil},
		{sliding, "a debt", words(hours + ":3:3:3600000@5:0 PX 90000000"), key, []any{10, 3_600_000, 0, 0, 0, 9, 10}, nil},
		{sliding, "a debt, of a later version", words(hours + ":3:3:3600000:x PX 60000"), key, []any{10, 3_600_000, 0, 0, 0, 9, 10}, nil},
		{sliding, "a probe", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 3_600_000, 0}, nil},
		{sliding, "a probe of no key", nil, key, []any{10, 3_600_000, 0}, nil},
		{sliding, "of no key", nil, key, []any{10, 3_600_000, 2, 1, 1, 1, 1, 1}, nil},
		{sliding, "begun", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 3_600_000, 1, 1, 1}, nil},
		{sliding, "denied", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 3_600_000, 1, 8, 1}, nil},
		{sliding, "longer than before", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 36_000_000, 1, 1, 1}, nil},
		{sliding, "shorter than before", words(hours + ":3:3:3600000 PX 90000000"), key, []any{10, 1000, 1, 1, 1}, nil},
		{sliding, "of a later version", words(hours + ":3:3:3600000:x PX 60000"), key, []any{10, 3_600_000, 1, 1, 1}, nil},
		{all, "a sliding window", words("SET k 3 PX 100000\n SET s 1:3:3:3600000 PX 90000000"), []string{"g", "k", "s"}, []any{
			0, 3, "gcra", 1, int64(1e12), 0, 1_000_001, "window", 10, 100_000, "sliding", 10, 3_600_000, 1, 1, 1000, 0, 1, 1,
		}, nil},
		{all, "a sliding window, a probe", words("SET k 3 PX 100000"), []string{"s", "k"}, []any{
			0, 2, "sliding", 10, 60_000, "window", 10, 100_000, 0,
		}, nil},
		{log, "new", plain, keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "filled", state(plain, filled), keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "counted", state(plain, filled), keys, []any{"", -1, 0, 0, 0, x}, nil},
		{log, "denied", state(plain, filled), keys, []any{"10", -1, 0, 0, 0, member("x", 9)}, nil},
		{log, "kept alive", state(kept, filled), keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "that expires", state(plain, filled, expiring), keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "without its value", state(plain, filled, noValue), keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "after the clock stepped back", state(plain, filled, farAhead), keys, []any{"10", -1, 0, 0, 0, x}, nil},
		{log, "of those who wait", state(plain, filled), keys, []any{"10", 1, 20_000, 0, 0, member("x", 5), member("y", 5)}, nil},
		{log, "in part", state(plain, filled), keys, []any{"10", -3, 0, 0, 0, member("x", 9)}, nil},
		{log, "one client's, in part, of a limit set before", state(perClient, filled, words("SET v 4@6")), keys, []any{"10", -3, 0, 1, 0, member("x", 90)}, nil},
		{log, "given back", state(plain, filled), keys, []any{"10", -1, 0, 0, 1, member("a", 2), 0}, nil},
		{log, "given back in part", state(plain, filled), keys, []any{"10", -1, 0, 0, 1, member("a", 2), 1}, nil},
		{log, "given back in part, kept alive", state(kept, filled), keys, []any{"10", -1, 0, 0, 1, member("a", 2), 1}, nil},
		{log, "a debt", state(plain, filled), keys, []any{"10", -4, 0, 0, 0, member("x", 15)}, nil},
		{log, "a debt in part", state(kept, filled), keys, []any{"10", -4, 0, 0, 0, member("x", 90)}, nil},
		{log, "one client's, a debt", state(perClient, filled, words("SET v 4@7")), keys, []any{"10", -4, 0, 1, 0, x}, nil},
		{log, "given back and more", state(kept, filled), keys, []any{"10", 0, 20_000, 0, 1, member("a", 2), 0, member("x", 3)}, nil},
		{log, "one client's", state(perClient, filled, words("SET v 4@7")), keys, []any{"10", -1, 0, 1, 0, x}, nil},
		{log, "one client's, of a limit set before", state(perClient, filled, words("SET v 4@6")), keys, []any{"10", -1, 0, 1, 0, x}, nil},
		{log, "one client's, of a limit set before, a probe", state(perClient, filled, words("SET v 4@6")), keys, []any{"", -2, 0, 1, 0}, nil},
		{log, "one client's, new", perClient, keys, []any{"10", -1, 0, 1, 0, x}, nil},
		{log, "one client's, without its value", state(perClient, filled, noValue), keys, []any{"10", -1, 0, 1, 0, x}, nil},
		{log, "one client's, counted", state(perClient, filled, words("SET v 4@7"), expiring), keys, []any{"", -1, 0, 1, 0, x}, nil},
		{log, "one client's, given back", state(perClient, filled, words("SET v 4@7")), keys, []any{"10", -1, 0, 1, 1, member("a", 2), 0}, nil},
		{log, "one client's, a probe", state(perClient, filled, words("SET v 4@7")), keys, []any{"", -2, 0, 1, 0}, nil},
		{log, "a probe", state(plain, filled), keys, []any{"", -2, 0, 0, 0}, nil},
		{log, "a probe without its value", state(kept, filled, noValue), keys, []any{"", -2, 0, 0, 0}, nil},
		{all, "a probe", words("SET k 3 PX 100000"), []string{"g", "k"}, []any{
			0, 2, "gcra", 1, int64(1e12), 0, 1_000_001, "window", 10, 100_000, 0,
		}, nil},
		{all, "both algorithms", words("SET k 3 PX 100000"), []string{"g", "k"}, []any{
			0, 2, "gcra", 1, int64(1e12), 0, 1_000_001, "window", 10, 100_000, 1, 1, 1000, 0, 1,
		}, nil},
		{all, "of which one denies", words("SET k 10 PX 100000"), []string{"g", "k"}, []any{
			0, 2, "gcra", 1, int64(1e12), 0, 1_000_001, "window", 10, 100_000, 1, 1, 1000, 0, 1,
		}, nil},
		{all, "two windows, after others", state(words("SET k2 3 PX 100000"), ahead), []string{"k", "k2"}, []any{
			0, 2, "gcra", 1, int64(1e12), 0, 1_000_001, "window", 10, 200_000, 1, 2, 1000, 0, 1,
		}, nil},
		{all, "of a later version", words("SET g " + ms(now*1000) + ":x PX 60000"), []string{"g", "k"}, []any{
			0, 2, "gcra", 3, int64(1e12), 1, 1_000_001, "window", 10, 100_000, 1, 1, 1000, 2, 1,
		}, nil},
		{all, "a longer window", words("SET k 3:10000 PX 9000"), []string{"g", "k"}, []any{
			0, 2, "gcra", 3, int64(1e12), 1, 1_000_001, "window", 10, 100_000, 1, 1, 1000, 2, 1,
		}, nil},
		{scripts.RateSet, "the first", nil, keys, []any{"try", 10, 60_000, 0, 0, 0}, nil},
		{scripts.RateSet, "the first, kept alive", nil, keys, []any{"try", 10, 60_000, 0, 600_000, 0}, nil},
		{scripts.RateSet, "anew", state(plain, filled), keys, []any{"set", 20, 60_000, 0, 0, 0}, nil},
		{scripts.RateSet, "anew, no longer kept alive", state(kept, filled, expiring), keys, []any{"set", 20, 60_000, 0, 0, 0}, nil},
		{scripts.RateSet, "with the state", state(plain, filled), keys, []any{"update", 20, 60_000, 0, 600_000, 1}, nil},
		{scripts.RateSet, "with what is left", state(kept, filled, noValue), keys, []any{"update", 20, 60_000, 0, 0, 1}, nil},
		{scripts.RateSet, "the other scope", state(kept, filled), keys, []any{"set", 20, 60_000, 1, 0, 1}, nil},
	}
}
