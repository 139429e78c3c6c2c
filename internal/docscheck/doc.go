// Package docscheck has the tests of the documents: their code compiles, their commands run, the links and tests
// that they name exist, and docs/api.txt is the exported API.
package docscheck
