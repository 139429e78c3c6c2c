package scripts

import "strings"

// The scripts of delayed tasks. All keys of a queue have its name as their hash tag. Times are in microseconds of the
// server's clock.
var (
	DelayEdit  = declare("delay_edit")
	DelayWork  = declare("delay_work")
	DelayRenew = declare("delay_renew")
	DelayState = declare("delay_state")
)

// DelayChannel returns the channel on which a queue announces that a task is due earlier than all others.
func DelayChannel(name string) string { return PrefixName("cogwheel_delay", name) }

// DelayProcessChannel returns the channel on which a process that waits for tasks of a queue is woken.
func DelayProcessChannel(name, process string) string { return DelayChannel(name) + ":" + process }

// DelayTag returns the beginning of all keys of a queue. It is {orders} for the names orders and {orders}.
func DelayTag(name string) string { return strings.TrimSuffix(SuffixName(name, ""), ":") }

// DelayKey returns the key of a part of a queue, such as "due".
func DelayKey(name, part string) string { return SuffixName(name, "delay:"+part) }
