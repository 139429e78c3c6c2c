package main

// Run runs a command line and returns the exit status.
var Run = run
