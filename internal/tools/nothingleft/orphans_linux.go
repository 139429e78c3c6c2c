package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const prSetChildSubreaper = 36 // linux/prctl.h

// adoptOrphans makes this process the parent of every descendant whose own parent ends.
func adoptOrphans() {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "nothingleft: orphans cannot be watched:", errno)
	}
}

// survivors reaps the children that end within the grace and returns the others.
func survivors() []process {
	deadline := time.Now().Add(grace)
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.ECHILD:
			return nil
		case err != nil, pid > 0:
		case time.Now().After(deadline):
			return children()
		default:
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func children() []process {
	var all []process
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		line, _ := os.ReadFile(stat) // pid (name) state parent ...; the name may hold spaces and parentheses
		fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		dir := filepath.Dir(stat)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if p, err := os.FindProcess(pid); err == nil {
			all = append(all, process{p, string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))})
		}
	}
	return all
}
