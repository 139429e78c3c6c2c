package scripts

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// NewScript makes a script that is not in the catalogue.
func NewScript(name, source string, traits ...trait) *Script {
	return newScript(name, func() string { return source }, traits)
}

// FileNames lists the .lua files of a folder.
func FileNames(folder string) (names []string) {
	entries, err := files.ReadDir(folder)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// File returns the text of a file, with the lines that want includes.
func File(path string) string { return load(path) }

// answer is an error of a server.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// Plain is what callers see of an error of a script.
func Plain(said string) string {
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(answer(said))
	return plain(cmd).Err().Error()
}
