package calls

// MostInFlight is how many batches to a node are in flight at most.
const MostInFlight = width + maxStalled
