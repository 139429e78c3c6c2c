//go:build unix

// Command report measures cogwheel beside its peers and writes docs/benchmarks.md, its plots, results/report.md
// with all rows, and the figures in README.md from what was measured. It runs in the folder benchmarks.
//
//	go run ./cmd/report run               # measures, about 38 minutes on 2 cores: results/report.txt
//	go run ./cmd/report run -only fleets  # measures one package, and replaces its results in that file
//	go run ./cmd/report write             # writes the documents from results/report.txt
//
//	go run ./cmd/report goals    # prints which goals results/report.txt meets
//
// Other commands print tables that stand in the documents:
//
//	go run ./cmd/report capacity                                 # 1 to 100 000 held locks
//	go run ./cmd/report capacity -locks 300000,1000000 -lease 2m
//	go run ./cmd/report objects                                  # one object of each kind
//	go run ./cmd/report hang                                     # an HTTP service whose Redis hangs
//	go run ./cmd/report options                                  # a lock with several redis.Options, while Redis hangs
//
// What is measured stands in run.go, what is compared in tables.go, the text in page.tmpl.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	usage := errors.New("usage: report run|write|goals|capacity|objects|hang|options [options]")
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet("report "+args[0], flag.ContinueOnError)
	data := flags.String("data", "results/report.txt", "the file of the results")
	switch args[0] {
	case "run":
		m := measurement{log: os.Stderr}
		size := flags.String("size", "full", "full, or smoke: a moment of each, only to see that everything works")
		flags.IntVar(&m.rounds, "rounds", 5, "rounds; in each, the implementations take turns")
		flags.StringVar(&m.netty, "netty", "", "the class path of Netty, if it takes part; see .ci/install-netty")
		flags.StringVar(&m.only, "only", "", "measures one package, such as fleets, and replaces its results in the file")
		flags.DurationVar(&m.limit, "limit", 50*time.Minute, "no round begins that would end later")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		m.full = *size == "full"
		if *size != "full" && *size != "smoke" {
			return usage
		}
		return m.run(ctx, *data)
	case "write":
		to := flags.String("to", repository, "the folder in which README.md and docs are written")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return writeFiles(*data, *to)
	case "goals":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		p, err := readPage(*data)
		if err != nil {
			return err
		}
		text, err := p.text("goals")
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	case "capacity":
		points := flags.String("locks", "1,1000,10000,100000", "how many locks are held, row by row")
		lease := flags.Duration("lease", redislock.DefaultLease, "the lease of each lock")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return capacity(*points, *lease)
	case "objects":
		return objects(os.Stdout)
	case "hang":
		timeout := flags.Duration("timeout", 250*time.Millisecond, "the limiter's timeout")
		hang := flags.Duration("hang", 8*time.Second, "how long Redis hangs")
		late := flags.Duration("late", 10*time.Millisecond, "how much longer than the timeout a request may take")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return hangTest(*timeout, *hang, *late)
	case "options":
		hang := flags.Duration("hang", 8*time.Second, "how long Redis hangs")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return compareOptions(*hang)
	}
	return usage
}

// repository is where README.md is.
const repository = ".."

// writeFiles writes what documents returns.
func writeFiles(data, to string) error {
	files, err := documents(data, repository)
	if err != nil {
		return err
	}
	for name, text := range files {
		name = filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
