package wheel_test

import (
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// closing is a task in the form of Netty's. Cancelled is optional.
type closing struct{ connection string }

func (c closing) Run(*wheel.Timeout)       { fmt.Println("closing", c.connection) }
func (c closing) Cancelled(*wheel.Timeout) { fmt.Println("keeping", c.connection) }

// A TimerTask is an object with a method Run. If it also has Cancelled, that is called by Cancel.
func ExampleTimerTask() {
	w, stop := exampleWheel()
	defer stop()
	timeout, err := w.NewTimeout(closing{"connection 3"}, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(timeout.Cancel(), timeout.IsCancelled(), timeout.IsExpired())
	// Output:
	// keeping connection 3
	// true true false
}
