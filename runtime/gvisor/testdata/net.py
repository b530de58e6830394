"""Holds connections open, in each way of waiting for them, and says on port 7000 how each ended.

The first argument is the address of a server outside that answers nothing.
"""
import errno
import select
import socket
import sys
import threading
import time

OUTSIDE = (sys.argv[1], 9000)
ended = {}


def note(name, action):
    """Runs action in a thread; what it raises or returns is how the connection ended."""
    def body():
        try:
            ended[name] = f"returned {action()!r}"
        except OSError as err:
            ended[name] = errno.errorcode.get(err.errno, str(err))
    threading.Thread(target=body, daemon=True).start()


def connect():
    return socket.create_connection(OUTSIDE, timeout=None)


def epoll(conn, flags):
    def wait():
        conn.setblocking(False)
        poller = select.epoll()
        poller.register(conn, flags)
        while not poller.poll():
            pass
        return conn.recv(100)
    return wait


def poll(conn):
    poller = select.poll()
    poller.register(conn, select.POLLIN)
    poller.poll()
    return conn.recv(100)


def fill(conn):
    while True:
        conn.send(b"x" * 65536)


conns = {name: connect() for name in ("recv", "epoll", "epoll_et", "poll", "select", "fill", "later_send", "later_recv", "half")}
note("recv", lambda: conns["recv"].recv(100))
note("epoll", epoll(conns["epoll"], select.EPOLLIN))
note("epoll_et", epoll(conns["epoll_et"], select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET))
note("poll", lambda: poll(conns["poll"]))
note("select", lambda: select.select([conns["select"]], [], []) and conns["select"].recv(100))
note("fill", lambda: fill(conns["fill"]))
note("connecting", lambda: socket.create_connection((OUTSIDE[0], 9001)))
conns["half"].shutdown(socket.SHUT_WR)
note("half", lambda: conns["half"].recv(100))

outside_udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
outside_udp.connect(OUTSIDE)

# Connections within the sandbox, with a server that echoes, in both families' loopback.
echoes = []
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        continue
    near = socket.create_connection(server.getsockname()[:2])
    far, _ = server.accept()
    waiting = socket.create_connection(server.getsockname()[:2])  # nobody has accepted it

    def echo(far=far):
        while data := far.recv(100):
            far.send(data)
    threading.Thread(target=echo, daemon=True).start()
    echoes.append((near, server, waiting))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
wildcard = socket.create_server(("0.0.0.0", 0))


def check_loopback():
    for near, server, waiting in echoes:
        near.settimeout(5)
        near.send(b"still here")
        if near.recv(100) != b"still here":
            return f"no echo of {near}"
        server.settimeout(5)
        accepted, _ = server.accept()
        waiting.send(b"at last")
        if accepted.recv(100) != b"at last":
            return f"nothing from {waiting}"
        new = socket.create_connection(server.getsockname()[:2], timeout=5)
        server.accept()[0].send(b"new")
        if new.recv(100) != b"new":
            return "no new connection"
    udp.settimeout(5)
    udp.sendto(b"datagram", udp.getsockname())
    if udp.recv(100) != b"datagram":
        return "no datagram"
    socket.create_connection(("127.0.0.1", wildcard.getsockname()[1]), timeout=5)
    wildcard.settimeout(5)
    wildcard.accept()
    return "ok"


def later(name, action):
    conns[name].settimeout(5)
    try:
        return f"returned {action(conns[name])!r}"
    except OSError as err:
        return errno.errorcode.get(err.errno, str(err))


def answer(question):
    if question == "loopback":
        return check_loopback()
    if question == "ended":
        return " ".join(f"{k}={v.replace(' ', '_')}" for k, v in sorted(ended.items())) or "none"
    if question == "later_send":
        return later("later_send", lambda c: c.send(b"x"))
    if question == "later_recv":
        return later("later_recv", lambda c: c.recv(1))
    if question == "datagram":
        return f"returned {outside_udp.send(b'x')}"
    if question == "again":
        with connect() as conn:
            return "ok" if conn else ""
    return "ok"


def main():
    server = socket.create_server(("127.0.0.1", 7000))
    time.sleep(0.2)
    while True:
        conn, _ = server.accept()
        with conn:
            question = conn.makefile().readline().strip()
            try:
                conn.send(answer(question).encode())
            except Exception as err:
                conn.send(repr(err).encode())


main()
