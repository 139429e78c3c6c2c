package main

import (
	"context"

	"github.com/cogwheel-go/cogwheel/delay"
)

// paused is the answer of tasks pause and tasks resume.
type paused struct {
	Name    string `json:"name"`
	Paused  bool   `json:"paused"`
	Changed bool   `json:"changed"`
}

// pause pauses or resumes a queue. A queue that is so already is no error.
func (t *tool) pause(ctx context.Context) error {
	answer := paused{Name: t.name, Paused: t.verb == "pause"}
	err := t.withDelays(ctx, func(c *delay.Client) (err error) {
		if answer.Paused {
			answer.Changed, err = c.Queue(t.name).Pause(ctx)
		} else {
			answer.Changed, err = c.Queue(t.name).Resume(ctx)
		}
		return err
	})
	says := map[paused]string{
		{t.name, true, true}: "paused: no process claims a task", {t.name, true, false}: "was paused before",
		{t.name, false, true}: "resumed", {t.name, false, false}: "was not paused",
	}
	switch {
	case err != nil:
		return err
	case t.json:
		return t.printJSON(answer)
	}
	printf(t.out, "%s: %s\n", quote(t.name), says[answer])
	return nil
}
