package wheel

import "math/bits"

const (
	chunkBits = 6 // small, as one entry that lasts keeps a chunk
	chunkSize = 1 << chunkBits
	chunkMask = chunkSize - 1

	// spareNodes is how many free nodes a slab keeps at least. It keeps more while more are in use: 1 for every 8.
	spareNodes = 256
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
	gen  uint32 // highest generation so far: a new chunk in its place begins with it, so old handles stay expired
}

// slab hands out nodes by index. Index 0 is never handed out: it means none. Not safe for concurrent use.
type slab struct {
	chunks  []*chunk
	states  []chunkState
	partial chunkSet // chunks with a free node
	empty   chunkSet // chunks with no node in use
	holes   chunkSet // chunks given back
	active  uint32   // the chunk that alloc tries first
	live    int      // nodes in use
	free    int      // nodes allocated and not in use
	gen     uint32   // highest generation of the chunks at the end that were cut off
}

// chunkSet is a set of chunks.
type chunkSet struct {
	words     []uint64
	low, high int // no word before low or behind high has a bit set
	n         int
}

func (s *chunkSet) add(c uint32) {
	w := int(c >> 6)
	for w >= len(s.words) {
		s.words = append(s.words, 0)
	}
	s.words[w] |= 1 << (c & 63)
	s.low, s.high = min(s.low, w), max(s.high, w)
	s.n++
}

func (s *chunkSet) remove(c uint32) {
	s.words[c>>6] &^= 1 << (c & 63)
	s.n--
}

// first returns the lowest chunk of a set that has one.
func (s *chunkSet) first() uint32 {
	for s.words[s.low] == 0 {
		s.low++
	}
	return uint32(s.low<<6 + bits.TrailingZeros64(s.words[s.low]))
}

// last returns the highest chunk of a set that has one.
func (s *chunkSet) last() uint32 {
	for s.words[s.high] == 0 {
		s.high--
	}
	return uint32(s.high<<6 + bits.Len64(s.words[s.high]) - 1)
}

func (s *slab) node(i uint32) *node { return &s.chunks[i>>chunkBits][i&chunkMask] }

// alloc takes a free node; none means that the slab must be grown first.
func (s *slab) alloc() (i uint32, n *node) {
	if s.free == 0 {
		return 0, nil
	}
	st := &s.states[s.active]
	if st.free == 0 {
		s.active = s.partial.first() // filling low chunks first lets high ones drain
		st = &s.states[s.active]
	}
	i = st.free
	n = s.node(i)
	st.free = n.next
	st.live++
	s.live++
	s.free--
	if st.live == 1 || st.free == 0 {
		s.noteTaken(s.active, st)
	}
	return i, n
}

// noteTaken records that a chunk is no longer empty, or is full.
func (s *slab) noteTaken(c uint32, st *chunkState) {
	if st.live == 1 {
		s.empty.remove(c)
	}
	if st.free == 0 {
		s.partial.remove(c)
	}
}

// release gives a node back and ends its generation. Drop what surplus then reports.
func (s *slab) release(i uint32) {
	c := i >> chunkBits
	st := &s.states[c]
	n := s.node(i)
	n.gen++
	n.next = st.free
	st.gen = max(st.gen, n.gen)
	if st.free == 0 {
		s.partial.add(c)
	}
	st.free = i
	st.live--
	s.live--
	s.free++
	if st.live == 0 {
		s.empty.add(c)
	}
}

// surplus reports a chunk to drop: an empty one, if enough free nodes remain without it, or if the tables end with it
// and hardly anything else is in them.
func (s *slab) surplus() (drop uint32, ok bool) {
	if s.empty.n == 0 {
		return 0, false
	}
	drop = s.empty.last()
	n := len(s.chunks)
	return drop, s.free > max(spareNodes, s.live/8) || int(drop) == n-1 && s.holes.n > n*3/4
}

// drop frees an empty chunk, and keeps its highest generation. If no chunk is behind it, it also cuts off
// chunks that were dropped before.
func (s *slab) drop(c uint32) {
	s.free -= chunkSize
	if c == 0 {
		s.free++ // index 0 is never handed out
	}
	s.states[c].free = 0
	s.partial.remove(c)
	s.empty.remove(c)
	s.holes.add(c)
	s.chunks[c] = nil
	last := len(s.chunks)
	for last > 0 && s.chunks[last-1] == nil {
		last--
		s.holes.remove(uint32(last))
		s.gen = max(s.gen, s.states[last].gen)
	}
	s.chunks, s.states = cut(s.chunks, last), cut(s.states, last)
	if int(s.active) >= last {
		s.active = 0
	}
}

// cut returns the first n elements, in less memory if they need much less.
func cut[T any](all []T, n int) []T {
	if cap(all) > 64 && n < cap(all)/4 {
		return append(make([]T, 0, 2*n), all[:n]...)
	}
	return all[:n]
}

// install adds an empty chunk at the lowest place that has none and returns that place.
func (s *slab) install(ch *chunk) uint32 {
	c := uint32(len(s.chunks))
	if s.holes.n > 0 {
		c = s.holes.first()
		s.holes.remove(c)
	} else {
		s.chunks = append(s.chunks, nil)
		s.states = append(s.states, chunkState{gen: s.gen})
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
	s.partial.add(c)
	s.empty.add(c)
	return c
}
