package wheel

import (
	"math/bits"
	"slices"
)

const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
	chunkMask = chunkSize - 1
)

// node is one entry of the wheel. It holds no pointer, so the garbage collector never looks at it, and it
// links to its neighbours by index, so growing never moves it.
type node struct {
	deadline int64  // nanoseconds since the wheel's origin
	next     uint32 // neighbours in the bucket, or the next free node; 0 is none
	prev     uint32
	loc      uint32 // which row and bucket it is linked in
	gen      uint32 // raised when the node is freed: an old handle no longer matches
}

// chunk is the unit in which nodes are allocated and given back.
type chunk [chunkSize]node

// chunkState is kept beside the chunk so that a chunk fills its size class exactly.
type chunkState struct {
	free uint32 // head of the chunk's free list
	live uint32 // nodes in use
	gen  uint32 // highest generation so far: a chunk made anew begins with it, so that old handles stay stale
}

// slab hands out nodes by index. Index 0 is never handed out: it means none. Not safe for concurrent use.
type slab struct {
	chunks  []*chunk
	states  []chunkState
	partial []uint64 // bit set: the chunk exists and has a free node
	active  uint32   // the chunk that alloc tries first
	live    int      // nodes in use
	free    int      // nodes allocated and not in use
	holes   int      // chunks given back
}

func (s *slab) node(i uint32) *node { return &s.chunks[i>>chunkBits][i&chunkMask] }

// alloc takes a free node; false means that the slab must be grown first.
func (s *slab) alloc() (uint32, bool) {
	if s.free == 0 {
		return 0, false
	}
	c := s.active
	if s.states[c].free == 0 {
		c = s.firstPartial()
		s.active = c
	}
	st := &s.states[c]
	i := st.free
	st.free = s.node(i).next
	st.live++
	s.live++
	s.free--
	if st.free == 0 {
		s.partial[c>>6] &^= 1 << (c & 63)
	}
	return i, true
}

// firstPartial finds the lowest chunk with a free node: filling low chunks first lets high ones drain.
func (s *slab) firstPartial() uint32 {
	for w, set := range s.partial {
		if set != 0 {
			return uint32(w<<6 + bits.TrailingZeros64(set))
		}
	}
	panic("wheel: free nodes counted but none found")
}

// release gives a node back and ends its generation. It reports the chunk to drop if that emptied one and
// enough free nodes remain without it.
func (s *slab) release(i uint32) (drop uint32, ok bool) {
	c := i >> chunkBits
	st := &s.states[c]
	n := s.node(i)
	n.gen++
	n.next = st.free
	st.gen = max(st.gen, n.gen)
	if st.free == 0 {
		s.partial[c>>6] |= 1 << (c & 63)
	}
	st.free = i
	st.live--
	s.live--
	s.free++
	return c, st.live == 0 && c != s.active && s.free > max(2*chunkSize, s.live/8)
}

// drop frees an empty chunk, remembering its highest generation.
func (s *slab) drop(c uint32) {
	s.free -= chunkSize
	if c == 0 {
		s.free++ // index 0 is never handed out
	}
	s.states[c].free = 0
	s.partial[c>>6] &^= 1 << (c & 63)
	s.chunks[c] = nil
	s.holes++
}

// install adds an empty chunk at the lowest place that has none and returns that place.
func (s *slab) install(ch *chunk) uint32 {
	c := uint32(len(s.chunks))
	if s.holes > 0 {
		c = uint32(slices.Index(s.chunks, nil))
		s.holes--
	} else {
		s.chunks = append(s.chunks, nil)
		s.states = append(s.states, chunkState{})
		if int(c>>6) == len(s.partial) {
			s.partial = append(s.partial, 0)
		}
	}
	s.chunks[c] = ch
	st := &s.states[c]
	for k := chunkSize - 1; k >= 0; k-- {
		i := c<<chunkBits | uint32(k)
		if i == 0 {
			break // none
		}
		ch[k].gen = st.gen
		ch[k].next = st.free
		st.free = i
		s.free++
	}
	s.partial[c>>6] |= 1 << (c & 63)
	return c
}
