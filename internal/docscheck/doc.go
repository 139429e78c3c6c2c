// Package docscheck has the tests of the documents: their code compiles, their commands run, their links and the tests they
// name exist, and docs/api.txt is the exported API.
package docscheck
