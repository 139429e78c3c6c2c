package scripts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// crcTable is the table of CRC-16/XMODEM.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			high := crc >> 15
			crc = crc<<1 ^ 0x1021*high
		}
		table[i] = crc
	}
	return table
}()

// slotOf is the slot of a key as the specification of Redis Cluster words it, written apart from the code.
func slotOf(key string) int {
	var crc uint16
	for _, c := range []byte(tag(key)) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^c]
	}
	return int(crc & 0x3fff)
}

func TestControl_TheSlotsOfTheNamesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0x31C3, slotOf("123456789"), "the check value of the specification")
	require.Equal(t, slotOf("user1000"), slotOf("{user1000}.following"))
	require.NotEqual(t, slotOf("a"), slotOf("b"))
}

// derived are the keys and channels of all objects of a name, by what they are.
func derived(name string) map[string]string {
	queue := scripts.FairLockKeys(name)
	keys := map[string]string{
		"lock fence": scripts.LockFence(name), "lock channel": scripts.LockChannel(name), "rw channel": scripts.RWChannel(name),
		"fair lock queue": queue[1], "fair lock timeout": queue[2], "fair lock alive": queue[3],
		"semaphore channel": scripts.SemChannel(name), "fair semaphore channel": scripts.PrefixName("cogwheel_fair", name),
		"reader": scripts.ReadTimeout(name, "0011:1"),
	}
	for _, suffix := range []string{
		"timeout", "fence", "value", "permits", "origin", "call:1:0011", "acquiring:0011", "releasing:0011",
		"fair:permits", "fair:leases", "fair:fence", "fair:waiting", "fair:kept",
	} {
		keys[suffix] = scripts.SuffixName(name, suffix)
	}
	return keys
}

// FuzzNames: all keys of an accepted name are in the slot of the name and differ from each other, and two names
// share none, unless one of them is made of the other, as with a, {a} and {a}:fair.
func FuzzNames(f *testing.F) {
	for _, names := range [][2]string{
		{"a", "b"},
		{"a", "{a}"},
		{"a{b}c", "b"},
		{"{a}{b}", "{b}{a}"},
		{"{a}:fair", "a"},
		{"a}b", "a"},
		{"{", "}"},
		{"{}a", "a{}"},
		{"{{a}}", "{a}"},
		{"redisson_lock_queue:{a}", "a"},
		{"a:b", "b:a"},
		{"\x00", "\x01"},
		{"{\xff}", "\xff\xfe"},
		{"x{a}", "y{a}"},
		{"x{a", "}b"},
		{"", " "},
		{"a\r\n", "a"},
		{strings.Repeat("x", scripts.MaxName+1), "x"},
	} {
		f.Add(names[0], names[1])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		keysOf := map[string]string{} // what has a key
		for i, name := range []string{one, other} {
			if err := scripts.CheckName(name); err != nil {
				require.ErrorIs(t, err, scripts.ErrName)
				require.Less(t, len(err.Error()), 700)
				continue
			}
			require.Equal(t, slotOf(name), scripts.Slot(name))
			all := derived(name)
			all["name"] = name
			for what, key := range all {
				require.Equal(t, slotOf(name), slotOf(key), "%q of %q has another slot: %q", what, name, key)
				who := name + " " + what
				if i == 1 && (one == other || strings.Contains(one, other) || strings.Contains(other, one)) {
					who = ""
				}
				if who != "" {
					require.Empty(t, keysOf[key], "%q is that of %q too", key, who)
					keysOf[key] = who
				}
			}
		}
	})
}
