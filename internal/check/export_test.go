package check

import (
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
)

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

// JudgeServer returns what is found of a server that answers HELLO and INFO so, or with an error.
func JudgeServer(hello any, info, refused string) []cogwheel.Finding {
	n := &node{client: &Client{Base: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Keeps: "locks"}}
	defer n.client.Base.Close()
	n.server = readHello(hello)
	n.judgeVersion()
	var err error
	if refused != "" {
		err = answer(refused)
	}
	n.judgeInfo(parseInfo(info), err)
	n.judgeCommands(rights{"get": {uses: []string{"locks"}, level: cogwheel.LevelFailure}}, map[string]error{"get": err})
	return n.findings
}

// answer is an error that a server sent.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}
