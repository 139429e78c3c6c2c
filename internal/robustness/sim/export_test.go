package sim

// TwoClocks returns a time with the readings of two clocks.
var TwoClocks = twoClocks
