package netty

import "sync/atomic"

// queue is Vyukov's intrusive multi-producer single-consumer queue.
type queue[T any] struct {
	tail atomic.Pointer[T]
	_    [56]byte
	head *T // the consumer's; always one already consumed element
}

func linkOf[T any](v *T) *atomic.Pointer[T] {
	return any(v).(interface{ link() *atomic.Pointer[T] }).link()
}

func (q *queue[T]) init(stub *T) {
	q.head = stub
	q.tail.Store(stub)
}

func (q *queue[T]) push(v *T) { linkOf(q.tail.Swap(v)).Store(v) }

func (q *queue[T]) pop() *T {
	next := linkOf(q.head).Load()
	if next == nil {
		return nil
	}
	q.head = next
	return next
}
