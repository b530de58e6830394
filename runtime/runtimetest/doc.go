// Package runtimetest is the contract of caisson.Runtime as tests: every runtime calls [Test] in its own.
//
// What runs inside the sandboxes is the program of package inside: its test programs, and its roles files and run. A real
// runtime has it as a static binary, the fake as Go functions.
package runtimetest
