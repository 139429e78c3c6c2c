package wheel

import (
	"bytes"
	"runtime"
	"sync"
	"time"
	"weak"
)

// Default returns the process-wide wheel, which the first call makes with default options. It cannot be
// stopped. In a bubble of testing/synctest, Default returns the wheel of the bubble: the runtime ends a program
// that uses a timer of a bubble outside it. That wheel keeps a goroutine until it has been empty for 100 ms of the
// bubble's time, and a bubble must not end before its goroutines: a test sleeps, or uses New and Stop instead.
func Default() *Wheel {
	if time.Now().Before(firstSynctest) { // the time of a bubble begins with the year 2000
		if id := bubble(); id != "" {
			return bubbles.wheelOf(id)
		}
	}
	return processWheel()
}

var processWheel = sync.OnceValue(newShared)

func newShared() *Wheel {
	w, err := New()
	if err != nil {
		panic("wheel: default options refused: " + err.Error())
	}
	w.shared = true
	return w
}

// firstSynctest precedes the first release of Go with bubbles.
var firstSynctest = time.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)

// bubble returns the id of the bubble in which the caller runs, or "". Only the header of a stack names it.
func bubble() string {
	var header [100]byte
	line, _, _ := bytes.Cut(header[:runtime.Stack(header[:], false)], []byte("]:"))
	_, id, _ := bytes.Cut(line, []byte("synctest bubble "))
	return string(id)
}

// bubbles has the default wheels of bubbles. It does not keep those of bubbles that have ended.
var bubbles = bubbleWheels{wheels: make(map[string]weak.Pointer[Wheel])}

type bubbleWheels struct {
	mu     sync.Mutex
	wheels map[string]weak.Pointer[Wheel]
}

func (b *bubbleWheels) wheelOf(id string) *Wheel {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.wheels[id].Value()
	if w == nil {
		w = newShared()
		b.wheels[id] = weak.Make(w)
	}
	return w
}
