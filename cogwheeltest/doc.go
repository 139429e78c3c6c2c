// Package cogwheeltest is a Redis server for tests.
package cogwheeltest
