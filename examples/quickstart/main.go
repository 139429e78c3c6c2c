// Command quickstart closes orders that are not paid in time. It needs no Redis.
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
	ended := make(chan string)
	closeLater := func(order string, after time.Duration) wheel.Timer {
		timer, err := w.AfterFunc(after, func() { ended <- order + " was not paid and is closed" })
		if err != nil {
			log.Fatal(err)
		}
		return timer
	}

	first := closeLater("order 1", 100*time.Millisecond)
	closeLater("order 2", 200*time.Millisecond)
	if first.Stop() { // the customer pays; the function will never run
		fmt.Println("order 1 is paid")
	}
	fmt.Println(<-ended)

	unprocessed, err := w.Stop(context.Background())
	fmt.Println(len(unprocessed), "timers were left,", err)
}
