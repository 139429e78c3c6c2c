package check

// Probed lists the commands that have a probe, those on a connection for messages included.
func Probed() (commands []string) {
	for command := range probes {
		commands = append(commands, command)
	}
	return append(commands, subscribing...)
}

// The verdicts.
const (
	Allowed       = allowed
	NoCommand     = noCommand
	NoKey         = noKey
	NoChannel     = noChannel
	NotThere      = notThere
	Unreachable   = unreachable
	Unserviceable = unserviceable
)

// Judge reads an answer.
func Judge(err error) any { return judge(err) }

// Older reports whether a version is older than another.
func Older(version, than string) bool { return older(version, than) }
