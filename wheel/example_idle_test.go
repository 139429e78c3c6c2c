package wheel_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// A connection that is closed when it has been idle for a while. The documentation of the package
// shows the loop of serveConn.
func Example_idleConnection() {
	w, stop := exampleWheel()
	defer stop()
	serve := func(b []byte) { fmt.Printf("served: %s\n", b) }

	conn, client := net.Pipe()
	go func() { _, _ = io.WriteString(client, "hello") }() // and then nothing more
	err := serveConn(w, conn, 10*time.Millisecond, serve)
	fmt.Println(err)
	// Output:
	// served: hello
	// io: read/write on closed pipe
}

func serveConn(w *wheel.Wheel, conn net.Conn, idle time.Duration, serve func([]byte)) error {
	buffer := make([]byte, 4096)
	timeout, err := w.AfterFunc(idle, func() { _ = conn.Close() })
	if err != nil {
		return err
	}
	defer timeout.Stop()
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err // closed, by the other side or by the timeout
		}
		timeout.Reschedule(idle) // nearly free
		serve(buffer[:n])
	}
}

// Sessions that end after half an hour without a request.
func ExampleKeyed() {
	sessions, err := wheel.NewKeyed(func(id uint64, user string) { fmt.Println("session", id, "of", user, "has expired") })
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := sessions.Set(7, "ada", 30*time.Minute); err != nil { // it logs in
		log.Fatal(err)
	}
	fmt.Println("a request:", sessions.Reschedule(7, 30*time.Minute))
	user, ok := sessions.Remove(7) // it logs out
	fmt.Println(user, ok)
	fmt.Println("a request:", sessions.Reschedule(7, 30*time.Minute))

	left, err := sessions.Stop(context.Background())
	fmt.Println(len(left), err)
	// Output:
	// a request: true
	// ada true
	// a request: false
	// 0 <nil>
}

// A document is saved when it has not changed for a while.
func ExampleKeyed_debounce() {
	saved := make(chan string)
	saves, err := wheel.NewKeyed(func(name, text string) { saved <- name + ": " + text })
	if err != nil {
		log.Fatal(err)
	}
	edit := func(name, text string) error {
		_, _, err := saves.Set(name, text, time.Second) // replaces what is not saved yet
		return err
	}

	for _, text := range []string{"a", "ab", "abc"} {
		if err := edit("notes", text); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(<-saved)
	_, err = saves.Stop(context.Background())
	fmt.Println(err)
	// Output:
	// notes: abc
	// <nil>
}
