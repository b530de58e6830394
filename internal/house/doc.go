// Package house tests the structure of this module: which package imports which, and which names and files must not
// disappear or grow.
package house
