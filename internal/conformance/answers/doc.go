// Package answers has no code. Its tests run every call of the library against each answer of the table in
// internal/redisconn/testdata/answers.tsv, and against a login that a server refuses while its password is rotated.
package answers
