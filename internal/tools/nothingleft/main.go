// Command nothingleft runs a command and fails if a process that the command started, directly or not, is
// still alive when it has ended. What is left is named, and killed.
//
//	nothingleft go test ./...
//
// The exit code is the command's own, or 1 if the command succeeded but left a process behind.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// grace is how long the children of an ended command may take to follow it.
const grace = 2 * time.Second

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: nothingleft command [argument ...]")
		os.Exit(2)
	}
	os.Exit(run(os.Args[1], os.Args[2:]...))
}

func run(name string, args ...string) int {
	adoptOrphans()
	// An interrupt reaches the command too, from the terminal; stay until the command has ended, to clean up
	// after it.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)

	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	code := 0
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "nothingleft: %s: %v\n", name, err)
		code = max(1, cmd.ProcessState.ExitCode()) // -1 if it never started, or died of a signal
	}

	// A survivor that is killed hands its own children over: look again until none is left.
	for left := survivors(); len(left) > 0; left = survivors() {
		for _, p := range left {
			fmt.Fprintf(os.Stderr, "nothingleft: %s left process %d behind: %s\n", name, p.Pid, p.command)
			_ = p.Kill()
		}
		code = max(code, 1)
	}
	return code
}

type process struct {
	*os.Process
	command string
}
