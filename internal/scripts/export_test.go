package scripts

import "github.com/redis/go-redis/v9"

// NewScript makes a script that is not in the catalogue.
func NewScript(name, source string, traits ...trait) *Script {
	s := &Script{name: name, source: source, script: redis.NewScript(source)}
	for _, t := range traits {
		t(s)
	}
	return s
}

// EmbeddedNames lists the .lua files.
func EmbeddedNames() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
