package main

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// The parsers of ids in arguments. Their errors name the command that lists the objects with such ids.
var (
	parseRun       = idParser(caisson.RunPrefix, "run", "runs ls")
	parseDelivery  = idParser(caisson.DeliveryPrefix, "delivery", "relay ls")
	parseReceipt   = idParser(caisson.ReceiptPrefix, "receipt", "sync log")
	parseSandboxID = idParser(caisson.SandboxPrefix, "sandbox", "sandbox ls")
)

// idParser returns a function that parses ids with this prefix. object is the kind of objects with such ids, and list the command
// that lists these objects; both are part of the error message.
func idParser(prefix, object, list string) func(string) (caisson.ID, error) {
	return func(s string) (caisson.ID, error) {
		id, err := caisson.ParseID(prefix, s)
		if err != nil {
			return "", caisson.Invalidf(object, "%.40q is not the id of a %s; see caisson %s", s, object, list)
		}
		return id, nil
	}
}

// parseOptional parses the id s with parse unless it is "".
func parseOptional(parse func(string) (caisson.ID, error), s string) (caisson.ID, error) {
	if s == "" {
		return "", nil
	}
	return parse(s)
}

// parseStates parses names of states. known contains all valid states; objects is the plural of the object in errors: "runs".
func parseStates[S ~string](names []string, known []S, objects string) (states []S, err error) {
	for _, n := range names {
		if !slices.Contains(known, S(n)) {
			return nil, caisson.Invalidf("state", "%.40q is not a state of %s; there are %s", n, objects, strings.Join(namesOfStates(known), ", "))
		}
		states = append(states, S(n))
	}
	return states, nil
}

// namesOfStates returns states as strings.
func namesOfStates[S ~string](states []S) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}
