package drive_test

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// ignoreSignals makes this process ignore all termination signals except SIGKILL.
func ignoreSignals() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) }

// childEnv is the environment variable with the role of a child process.
const childEnv = "DRIVETEST_CHILD"

// runChild runs the role of a fake agent's child process, if this process is one.
func runChild() {
	switch os.Getenv(childEnv) {
	case "sleep":
		ignoreSignals()
		forever()
	case "bomb":
		ignoreSignals()
		bomb()
	}
}

// forever waits for a signal that kills the process, for longer than any test takes.
func forever() {
	<-time.After(2 * testTimeout)
	os.Exit(0)
}

// child starts a process that ignores signals, in a new session if it is to be a daemon.
func child(name string, daemon bool) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: daemon}
	if err := cmd.Start(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
	}
}

// Limits of a fork bomb, to protect the machine that runs the tests if the program that has to kill the bomb is broken.
const (
	maxBomb  = 40
	bombTime = time.Minute
)

// bombEnv is the environment variable with the start time of a bomb.
const bombEnv = "DRIVETEST_BOMB"

// bomb starts processes that start processes, as long as there are fewer than maxBomb. Each has a new session, so that they
// share no process group.
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
