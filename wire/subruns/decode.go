package subruns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// maxNesting bounds the nesting depth of JSON values.
const maxNesting = 32

// decode decodes b, which must be one JSON value without duplicate names. If strict is set, unknown fields are errors.
func decode(b []byte, strict bool, v any) error {
	if err := wellFormed(b); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the body is not one JSON value: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the request makes no sense: %.200v", err)
	}
	return nil
}

// wellFormed returns an error if b is not one well-formed JSON value. Duplicate names are errors, because another parser may use
// the other of the two values.
func wellFormed(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := walk(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something behind it")
	}
	return nil
}

// walk reads one value, which is nested depth levels deep.
func walk(d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth == maxNesting {
		return fmt.Errorf("it is nested more than %d deep", maxNesting)
	}
	var names map[string]bool
	if open == '{' {
		names = map[string]bool{}
	}
	for d.More() {
		if open == '{' {
			t, err := d.Token()
			if err != nil {
				return err
			}
			name, _ := t.(string) // the decoder accepts only strings as names
			if names[name] {
				return fmt.Errorf("%.40q occurs twice", name)
			}
			names[name] = true
		}
		if err := walk(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
