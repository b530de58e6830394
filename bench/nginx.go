package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// nginx is a running process of nginx, as a reverse proxy.
type nginx struct {
	cmd     *exec.Cmd
	output  bytes.Buffer // Standard output and standard error of the process.
	address string       // Host and port on which it listens.
}

// nginxSettings is a format for the configuration of nginx: keep-alive connections to clients and to the upstream, as the model
// gateway has, and no logs. Its arguments are the directory, the upstream and the address to listen on.
const nginxSettings = `daemon off;
user root;
worker_processes 2;
pid %[1]s/nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	keepalive_requests 1000000000;
	client_body_buffer_size 64k;
	upstream model {
		server %[2]s;
		keepalive 64;
		keepalive_requests 1000000000;
	}
	server {
		listen %[3]s reuseport;
		location / {
			proxy_pass http://model;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

// startNginx starts a reverse proxy for an upstream, with its files in dir. It returns nil if nginx is not installed.
func startNginx(ctx context.Context, dir, upstream string) (*nginx, error) {
	exe := "/usr/sbin/nginx"
	if _, err := os.Stat(exe); err != nil {
		return nil, nil
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxSettings, dir, upstream, address), 0o600); err != nil {
		return nil, err
	}
	x := &nginx{cmd: exec.CommandContext(ctx, exe, "-p", dir, "-c", file, "-e", "stderr"), address: address}
	x.cmd.Env, x.cmd.Stdout, x.cmd.Stderr = []string{}, &x.output, &x.output
	x.cmd.WaitDelay = 5 * time.Second
	if err := x.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			return x, c.Close()
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("nginx does not listen: %w", err), x.end())
		}
	}
}

// freeAddress returns an address that is free to listen on. No other process in this network namespace can take it.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp4", hostAddress+":0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// end stops nginx and its workers.
func (x *nginx) end() error {
	x.cmd.Process.Signal(syscall.SIGTERM) // If the process has ended already, Wait reports that.
	if err := x.cmd.Wait(); err != nil {
		return fmt.Errorf("nginx: %w: %.500s", err, bytes.TrimSpace(x.output.Bytes()))
	}
	return nil
}
