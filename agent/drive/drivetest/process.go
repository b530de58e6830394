package drivetest

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// ignoreSignals makes this process one that only SIGKILL ends.
func ignoreSignals() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) }

// nameEnv tells a child what it is.
const nameEnv = "DRIVETEST_CHILD"

// beChild makes this process a child of a fake agent, if it is one.
func beChild() {
	switch os.Getenv(nameEnv) {
	case "sleep":
		ignoreSignals()
		forever()
	case "bomb":
		ignoreSignals()
		bomb()
	}
}

// forever waits for a signal that ends the process, for longer than any test has.
func forever() {
	<-time.After(2 * patience)
	os.Exit(0)
}

// child starts a process that ignores signals, in a session of its own if it is to be a daemon.
func child(name string, daemon bool) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), nameEnv+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: daemon}
	if err := cmd.Start(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
	}
}

// A fork bomb is bounded for the sake of the machine that runs the tests: in the number of its processes and in its time, should the program that
// has to end it be broken.
const (
	maxBomb  = 40
	bombTime = time.Minute
)

// bombEnv says when a bomb began.
const bombEnv = "DRIVETEST_BOMB"

// bomb starts processes that start processes, as long as there are fewer than maxBomb, each in a session of its own so that no group has them.
func bomb() {
	began, err := time.Parse(time.RFC3339Nano, os.Getenv(bombEnv))
	if err != nil {
		began = time.Now()
		os.Setenv(bombEnv, began.Format(time.RFC3339Nano))
	}
	for range time.Tick(time.Millisecond) {
		if time.Since(began) > bombTime {
			os.Exit(0)
		}
		if len(Survivors(traceEnv+"="+os.Getenv(traceEnv))) < maxBomb {
			child("bomb", true)
		}
	}
}
