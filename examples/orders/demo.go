package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
)

// demonstrate kills the process that has taken an order, and lets another close it.
func demonstrate(ctx context.Context) error {
	addr, stop, err := cogwheeltest.Embed()
	if err != nil {
		return err
	}
	defer stop()
	d := &demo{redis: addr, began: time.Now()}
	d.say("an embedded server is at %s; orders close after 3 s instead of 30 minutes", addr)

	first, err := d.start(ctx, "process 1")
	if err != nil {
		return err
	}
	defer first.kill()
	for _, path := range []string{"/orders/8", "/orders/8/pay", "/orders/7"} {
		if err := d.ask(ctx, first, http.MethodPost, path); err != nil {
			return err
		}
	}
	first.kill()
	d.say("process 1 is killed by SIGKILL. A timer in its memory would be lost; the task is in Redis")

	second, err := d.start(ctx, "process 2")
	if err != nil {
		return err
	}
	defer second.kill()
	if err := d.ask(ctx, second, http.MethodGet, "/orders"); err != nil {
		return err
	}
	line, err := second.line()
	if err != nil {
		return err
	}
	d.say("process 2: %s", line)
	return d.ask(ctx, second, http.MethodGet, "/orders")
}

type demo struct {
	redis string
	began time.Time
}

func (d *demo) say(format string, args ...any) {
	fmt.Printf("%6.3fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// process is a child that serves orders.
type process struct {
	*exec.Cmd

	out *bufio.Scanner
	url string
}

// start starts this program again, for the Redis of the demonstration.
func (d *demo) start(ctx context.Context, name string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{Cmd: exec.CommandContext(ctx, program, "-redis", d.redis, "-listen", "127.0.0.1:0", "-after", "3s")}
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		return nil, err
	}
	line, err := p.line()
	if err != nil {
		p.kill()
		return nil, err
	}
	p.url = strings.TrimPrefix(line, "serving ")
	d.say("%s serves %s", name, p.url)
	return p, nil
}

// line returns the next line that the process prints.
func (p *process) line() (string, error) {
	if !p.out.Scan() {
		return "", errors.Join(errors.New("the process has ended"), p.out.Err())
	}
	return p.out.Text(), nil
}

// kill ends the process as a crash does. It may be called twice.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// ask sends a request to a process, and prints the answer.
func (d *demo) ask(ctx context.Context, p *process, method, path string) error {
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(body)) {
		d.say("%-4s %-14s %s", method, path, strings.TrimSpace(line))
	}
	return nil
}
