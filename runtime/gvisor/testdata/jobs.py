"""Has an interactive shell with job control on a terminal, and workers of multiprocessing, from before a restore.

Answers a question on port 7000 with "ok", or with what is wrong.
"""
import multiprocessing
import os
import pty
import select
import socket
import sys
import time
import traceback


def expect(what, ok):
    if not ok:
        raise AssertionError(what)


class Terminal:
    """A process that leads the session of a terminal."""

    def __init__(self, command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["PS1"] = ""
            os.execv(command[0], command)
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, text):
        """Waits until the terminal has shown text, and returns all before it."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            ready = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]
            expect(f"no {text!r} in {self.seen!r}", ready)
            self.seen += os.read(self.fd, 4096).decode()
        before, self.seen = self.seen.split(text, 1)
        return before

    def run(self, line):
        """Returns what a command line shows; the shell does not show the line itself."""
        self.type(line + "\necho do''ne\n")
        return self.wait("done\r\n")

    def reads(self, text):
        """Waits until cat, in the foreground, shows what is typed."""
        self.type(text + "\n")
        self.wait(text + "\r\n")


LEADER = """
import os, sys
os.write(1, b"begun\\n")
for line in sys.stdin:
    try:
        os.tcsetpgrp(0, os.getpid())
        assert os.tcgetpgrp(0) == os.getpgrp()
        print("taken", flush=True)
    except BaseException as e:
        print("failed:", e, flush=True)
"""


def square(n):
    return n * n


def jobs():
    shell.type("fg %1\n")
    shell.reads("first")
    shell.type("\x1a")
    shell.wait("Stopped")
    expect("a stopped job", "Stopped" in shell.run("jobs %1"))
    shell.run("kill -STOP %2")
    deadline = time.monotonic() + 20
    while "Stopped" not in shell.run("jobs %2"):
        expect("a job that is stopped", time.monotonic() < deadline)
    shell.run("bg %2")
    expect("a job in the background", "Running" in shell.run("jobs %2"))
    shell.run("sleep 1000 &\nkill $!; wait $!")
    said = shell.run("set +m; set -m; echo flags=$-")
    expect(f"set -m says {said!r}", "m" in said.partition("flags=")[2] and "bash:" not in said)
    shell.type("cat\n")
    shell.reads("second")
    shell.type("\x03")
    deadline = time.monotonic() + 20
    while "4\r\n" not in shell.run("echo $((2+2))"):
        expect("the shell", time.monotonic() < deadline)
    return "ok"


def foreground():
    terminal.type("go\n")
    terminal.wait("taken")
    return "ok"


def workers():
    expect("the pool from before", pool.map(square, range(9)) == [n * n for n in range(9)])
    p = context.Process(target=square, args=(3,))
    p.start()
    p.join()
    expect("a new process", p.exitcode == 0)
    return "ok"


def join():
    """Joins a process from before, which multiprocessing refuses a program that has another pid than then."""
    os.kill(old.pid, 9)
    try:
        old.join()
    except AssertionError as e:
        return f"refused: {e}"
    return "ok"


def answer(question):
    known = {"ready": lambda: "ok", "jobs": jobs, "foreground": foreground, "workers": workers, "join": join}
    try:
        return known[question]()
    except Exception:
        return " | ".join(traceback.format_exc().split("\n"))


context = multiprocessing.get_context("fork")
pool = context.Pool(2)
pool.map(square, range(9))
old = context.Process(target=time.sleep, args=(1000,))
old.start()
shell = Terminal(["/bin/bash", "--norc", "--noediting", "-i"])
shell.run("stty -echo")
shell.type("cat\n")
shell.reads("zeroth")
shell.type("\x1a")
shell.wait("Stopped")
shell.run("sleep 1000 &")
shell.run("perl -e 'sleep' &")
terminal = Terminal([sys.executable, "-B", "-u", "-c", LEADER])
terminal.wait("begun")
server = socket.create_server(("127.0.0.1", 7000))
while True:
    conn, _ = server.accept()
    with conn:
        conn.send(answer(conn.makefile().readline().strip()).encode())
