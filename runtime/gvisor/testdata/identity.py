"""Checks that a process is at one with itself: whatever it says about its own pid holds wherever it says it.

Answers a question on port 7000 with "ok", or with what is wrong.
"""
import ctypes
import os
import resource
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

libc = ctypes.CDLL(None, use_errno=True)
SYS_TKILL, SYS_TGKILL, SYS_RT_SIGQUEUEINFO, SYS_RT_TGSIGQUEUEINFO = 200, 234, 129, 297
SYS_CAPGET, SYS_IOPRIO_GET = 125, 252

born = (os.getpid(), os.getppid(), threading.get_native_id())
got = []


def expect(what, ok):
    if not ok:
        raise AssertionError(what)


def syscall(*args):
    ret = libc.syscall(*args)
    if ret < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{os.strerror(err)} from syscall {args}")
    return ret


def handle(signum, frame):
    got.append(signum)


def takes_signal(what, send):
    got.clear()
    send()
    deadline = time.monotonic() + 5
    while not got and time.monotonic() < deadline:
        time.sleep(0.001)
    expect(f"{what}: no signal", got == [signal.SIGUSR1])


def check_signals():
    pid, tid = os.getpid(), threading.get_native_id()
    os.kill(pid, 0)
    info = struct.pack("iii", signal.SIGUSR1, 0, -1).ljust(128, b"\0")
    takes_signal("kill", lambda: os.kill(pid, signal.SIGUSR1))
    takes_signal("raise", lambda: signal.raise_signal(signal.SIGUSR1))
    takes_signal("tkill", lambda: syscall(SYS_TKILL, pid, signal.SIGUSR1))
    takes_signal("tgkill", lambda: syscall(SYS_TGKILL, pid, tid, signal.SIGUSR1))
    takes_signal("tgkill of gettid", lambda: syscall(SYS_TGKILL, pid, syscall(186), signal.SIGUSR1))
    takes_signal("sigqueue", lambda: syscall(SYS_RT_SIGQUEUEINFO, pid, signal.SIGUSR1, info))
    takes_signal("tgsigqueue", lambda: syscall(SYS_RT_TGSIGQUEUEINFO, pid, tid, signal.SIGUSR1, info))
    takes_signal("pthread_kill", lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
    fd = os.pidfd_open(pid)
    takes_signal("pidfd", lambda: signal.pidfd_send_signal(fd, signal.SIGUSR1))
    os.close(fd)
    try:
        os.kill(pid ^ 1 << 28, 0)
        expect("a pid that nobody has is taken", False)
    except ProcessLookupError:
        pass


def check_calls():
    pid = os.getpid()
    expect("gettid", syscall(186) == pid)
    expect("a thread's gettid", in_thread(lambda: syscall(186)) not in (pid, born[0]))
    expect("sched_getaffinity", os.sched_getaffinity(pid))
    os.sched_setaffinity(pid, os.sched_getaffinity(0))
    expect("sched_getscheduler", os.sched_getscheduler(pid) == os.sched_getscheduler(0))
    os.sched_getparam(pid)
    expect("getpriority", os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0))
    expect("prlimit", resource.prlimit(pid, resource.RLIMIT_NOFILE) == resource.getrlimit(resource.RLIMIT_NOFILE))
    expect("getpgid", os.getpgid(pid) == os.getpgrp())
    expect("getsid", os.getsid(pid) == os.getsid(0))
    syscall(SYS_IOPRIO_GET, 1, pid)
    header, data = struct.pack("Ii", 0x20080522, pid), ctypes.create_string_buffer(24)
    syscall(SYS_CAPGET, header, data)
    source, target = ctypes.create_string_buffer(b"caisson"), ctypes.create_string_buffer(8)
    local, remote = (struct.pack("PN", ctypes.addressof(b), 7) for b in (target, source))
    expect("process_vm_readv", libc.process_vm_readv(pid, local, 1, remote, 1, 0) == 7 and target.value == b"caisson")
    expect("PR_SET_PTRACER", libc.prctl(0x59616D61, pid, 0, 0, 0) == 0)


def check_proc():
    pid = os.getpid()
    with open(f"/proc/{pid}/stat") as a, open("/proc/self/stat") as b:
        expect("/proc stat", a.read().split()[0] == b.read().split()[0])
    expect("/proc exe", os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe"))
    expect("/proc fd", os.listdir(f"/proc/{pid}/fd"))
    with open(f"/proc/{pid}/task/{pid}/comm") as f:
        expect("/proc task", f.read())
    expect("only pids in a listing", max(int(p) for p in os.listdir("/proc") if p.isdigit()) <= 1 << 16)


def comm(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read()
    except FileNotFoundError:
        return None


def check_groups():
    """In a child, because a group is left once."""
    def leads():
        pid = os.getpid()
        os.setpgid(pid, pid)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        os.killpg(os.getpid(), signal.SIGTERM)
        os._exit(8)
    expect("a new child's group", in_child(leads) == 7)


def check_children():
    pid = os.getpid()
    expect("getppid of a new child", in_child(lambda: os._exit(7 if os.getppid() == pid else 8)) == 7)
    expect("sh", subprocess.check_output(["/bin/sh", "-c", "kill -0 $PPID; echo $PPID"]) == b"%d\n" % int(os.readlink("/proc/self")))
    expect("getppid", os.getppid() == born[1])
    child = os.fork()
    if child == 0:
        signal.pause()
    expect("waits", os.waitpid(child, os.WNOHANG) == (0, 0))
    os.kill(child, signal.SIGKILL)
    expect("waitpid", os.waitpid(child, 0) == (child, signal.SIGKILL))
    code = in_child(lambda: signal.raise_signal(signal.SIGABRT))
    expect("abort in a child", code == -signal.SIGABRT)


def in_child(body):
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_thread(body):
    result = []
    t = threading.Thread(target=lambda: result.append(body()))
    t.start()
    t.join()
    return result[0]


class Elder:
    """A child from before, that leads a group of its own and answers questions."""

    def __init__(self):
        self.ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.closerange(3, theirs.fileno())  # the connection that asked
            os.closerange(theirs.fileno() + 1, 1000)
            parent = os.getppid()
            while word := theirs.recv(100):
                if word == b"leave":
                    os._exit(5)
                os.setpgid(os.getpid(), os.getpid())
                theirs.send(f"{os.getpid()} {parent} {os.getppid()} {os.getpgrp()}".encode())
            os._exit(0)
        self.ask()

    def ask(self):
        self.ours.send(b"?")
        return [int(w) for w in self.ours.recv(100).split()]


elder = Elder()
known = set()


def check_elder():
    pid, parent, now, group = elder.ask()
    expect(f"a child's parent went from {parent} to {now}", parent == now)
    expect("its group changed", group == elder.pid)
    known.add(pid)
    for p in {pid, elder.pid} | known:
        os.kill(p, 0)
        os.killpg(p, 0)
        expect("its group", os.getpgid(p) == elder.pid)
        expect("waits for it", os.waitpid(p, os.WNOHANG) == (0, 0))
        expect("waits for its group", os.waitid(os.P_PGID, p, os.WEXITED | os.WNOHANG) is None)
        expect("waits for its id", os.waitid(os.P_PID, p, os.WEXITED | os.WNOHANG) is None)
        expect("its comm", comm(p) == comm(elder.pid))
    return pid


def check_end():
    """The end of a process is the end of all its names."""
    global elder
    pid = check_elder()
    fd = os.pidfd_open(pid)
    elder.ours.send(b"leave")
    expect("pidfd of its end", select.select([fd], [], [], 5)[0])
    expect("its end", os.waitpid(pid, 0) == (elder.pid, 5 << 8))
    for p in {pid, elder.pid} | known:
        deadline = time.monotonic() + 5
        while True:
            try:
                os.kill(p, 0)
            except ProcessLookupError:
                break
            expect(f"{p} lives on", time.monotonic() < deadline)
        expect("/proc after its end", not os.path.exists(f"/proc/{p}"))
    known.clear()
    elder = Elder()


def answer(question):
    if question == "ready":
        return "ok"
    if question == "pid":
        return str(os.getpid())
    if question == "clocks":
        return f"{time.monotonic()} {time.time()}"
    if question == "native":
        return str(born)
    if question == "token":
        return secrets.token_hex(16)
    if question == "tls":
        import ssl  # with the first question, so that the others are asked a program without OpenSSL
        return ssl.RAND_bytes(16).hex()
    if question == "abort":
        os.abort()
    if question == "exec":
        os.execv(sys.executable, [sys.executable, "-B"] + sys.argv)
    for check in (check_signals, check_calls, check_proc, check_groups, check_children, check_elder):
        check()
    if question == "end":
        check_end()
    return "ok"


def main():
    signal.signal(signal.SIGUSR1, handle)
    server = socket.create_server(("127.0.0.1", 7000))
    while True:
        conn, _ = server.accept()
        with conn:
            question = conn.makefile().readline().strip()
            try:
                conn.send(answer(question).encode())
            except Exception:
                conn.send(" | ".join(traceback.format_exc().split("\n")).encode())


main()
