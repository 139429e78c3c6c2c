package wheel_test

import (
	"fmt"
	"io"
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
