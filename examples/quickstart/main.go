// Command quickstart closes connections that have been idle for too long. It needs no Redis.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func main() {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	closed := make(chan string)
	closeIdle := func(connection string, after time.Duration) wheel.Timer {
		timer, err := w.AfterFunc(after, func() { closed <- connection })
		if err != nil {
			log.Fatal(err)
		}
		return timer
	}

	first := closeIdle("connection 1", 100*time.Millisecond)
	closeIdle("connection 2", 200*time.Millisecond)
	if first.Reschedule(time.Minute) { // false if it was closed before
		fmt.Println("connection 1 has sent a request")
	}
	fmt.Println(<-closed, "was idle and is closed")

	unprocessed, err := w.Stop(context.Background())
	fmt.Println(len(unprocessed), "timer was left,", err)
}
