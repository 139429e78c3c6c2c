package wheel

// counts is what one shard counts under its mutex.
type counts struct {
	fired, stopped uint64
}

func (c *counts) fire(lateNanos int64) { c.fired++ }
