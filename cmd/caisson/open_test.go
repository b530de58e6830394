package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// TestOpenBrowser tests that a URL is opened where the user can see a browser, as one argument, and nowhere else.
func TestOpenBrowser(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "opened")
	script := "#!/bin/sh\nprintf '%s|' \"$@\" > " + file + ".new && mv " + file + ".new " + file + "\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const url = "http://3000-sb.localhost:1/?a=b&c=$(id) d"
	for name, visible := range map[string]bool{"": false, "DISPLAY": true, "WAYLAND_DISPLAY": true, "BROWSER": true} {
		a := &app{stdio: stdio{getenv: func(key string) string {
			if key == name {
				return "x"
			}
			return ""
		}}}
		if err := openBrowser(context.Background(), a, url); err != nil {
			t.Fatal(err)
		}
		if !visible {
			continue // the next one would see the file of a browser that was started
		}
		poll.Until(t, time.Minute, func() bool { _, err := os.Stat(file); return err == nil })
		if b, err := os.ReadFile(file); err != nil || string(b) != url+"|" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		os.Remove(file)
	}
}
