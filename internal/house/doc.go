// Package house tests the structure of this module: which package imports which, and what may not vanish or grow.
package house
