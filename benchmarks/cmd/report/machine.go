//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// peerModules are the modules that are compared with, by the key of their version in the results.
var peerModules = []struct{ key, path string }{
	{"timingwheel", "github.com/RussellLuo/timingwheel"},
	{"gozero", "github.com/zeromicro/go-zero"},
	{"bsm", "github.com/bsm/redislock"},
	{"redsync", "github.com/go-redsync/redsync/v4"},
	{"rueidis", "github.com/redis/rueidis"},
	{"redisrate", "github.com/go-redis/redis_rate/v10"},
	{"asynq", "github.com/hibiken/asynq"},
	{"goredis", "github.com/redis/go-redis/v9"},
}

// machine describes what was measured, where and when, as lines of the benchmark format.
func (m *measurement) machine(ctx context.Context) (string, error) {
	var text strings.Builder
	line := func(key, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			fmt.Fprintf(&text, "%s: %s\n", key, value)
		}
	}
	line("size", m.size())
	line("date", m.began.UTC().Format(time.DateOnly))
	line("commit", output(ctx, "git", "rev-parse", "--short=10", "HEAD"))
	if output(ctx, "git", "status", "--porcelain", "--untracked-files=no") != "" {
		line("changed", "yes")
	}
	line("os", runtime.GOOS)
	line("arch", runtime.GOARCH)
	line("processor", match(contents("/proc/cpuinfo"), `(?m)^model name\s*:\s*(.*)$`))
	line("cores", fmt.Sprint(runtime.NumCPU()))
	line("memory", match(contents("/proc/meminfo"), `MemTotal:\s*(\d+ kB)`))
	line("load", match(contents("/proc/loadavg"), `^(\S+)`))
	line("kernel", output(ctx, "uname", "-r"))
	line("goversion", runtime.Version())
	server := os.Getenv("REDIS_SERVER")
	if server == "" {
		server = "redis-server"
	}
	line("redis", match(output(ctx, server, "--version"), `v=(\S+)`))
	if m.netty != "" {
		line("java", match(output(ctx, "java", "-version"), `version "(.*?)"`))
		line("netty", nettyVersion(m.netty))
	}
	for _, peer := range peerModules {
		version := output(ctx, "go", "list", "-m", "-f", "{{.Version}}", peer.path)
		if version == "" {
			return "", fmt.Errorf("there is no module %s", peer.path)
		}
		line(peer.key, version)
	}
	return text.String(), nil
}

// nettyVersion is in the name of the file that a jar of Debian is a link to, or beside it.
func nettyVersion(classPath string) string {
	for _, jar := range filepath.SplitList(classPath) {
		versions, _ := filepath.Glob(strings.TrimSuffix(jar, ".jar") + "-[0-9]*.jar")
		for _, file := range versions {
			if v := match(filepath.Base(file), `^netty\D*-([0-9.]+[0-9])`); v != "" {
				return v
			}
		}
	}
	return "of an unknown version"
}

// output returns what a command prints, nothing if it fails.
func output(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput() // java prints its version on standard error
	if err != nil {
		return ""
	}
	return string(out)
}

func contents(file string) string {
	text, _ := os.ReadFile(file) // not every system has it
	return string(text)
}

func match(text, pattern string) string {
	if found := regexp.MustCompile(pattern).FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}
