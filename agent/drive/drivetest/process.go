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

// forever waits for a signal that ends the process. A select without cases would be taken for a deadlock.
func forever() {
	for {
		_ = syscall.Pause() // which every signal ends
	}
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

// maxBomb bounds a fork bomb for the sake of the machine that runs the tests.
const maxBomb = 40

// bomb starts processes that start processes, as long as there are fewer than maxBomb, each in a session of its own so that no group has them.
func bomb() {
	for range time.Tick(time.Millisecond) {
		if len(Survivors(traceEnv+"="+os.Getenv(traceEnv))) < maxBomb {
			child("bomb", true)
		}
	}
}
