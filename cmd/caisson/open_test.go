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
	script := "#!/bin/sh\nprintf '%s|\\n' \"$@\" >> " + file + "\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	open := func(visible, url string) {
		a := &app{stdio: stdio{getenv: func(key string) string {
			if key == visible {
				return "x"
			}
			return ""
		}}}
		if err := openBrowser(context.Background(), a, url); err != nil {
			t.Fatal(err)
		}
	}
	open("", "http://unseen/") // first, so that a browser that it starts is seen below
	const url = "http://3000-sb.localhost:1/?a=b&c=$(id) d"
	want := ""
	for _, visible := range []string{"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} {
		open(visible, url)
		want += url + "|\n"
		var got []byte
		poll.Until(t, time.Minute, func() bool { got, _ = os.ReadFile(file); return len(got) >= len(want) })
		if string(got) != want {
			t.Errorf("with %s opened are %q", visible, got)
		}
	}
}
