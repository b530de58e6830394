package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/excerpt"
)

// Settings of the comparison of scp to two servers: Caisson's in front of a sandbox, and OpenSSH's.
const (
	scpSize    = 256 << 20                // bytes of the copied file
	scpSamples = 3                        // number of measured copies to each server
	scpCipher  = "aes128-gcm@openssh.com" // cipher of both servers
	sshdPath   = "/usr/sbin/sshd"         // path of OpenSSH's server
)

// sshCopy compares the speed of scp into a sandbox with that of scp to OpenSSH's server over a veth pair.
func (s traffic) sshCopy(ctx context.Context) (err error) {
	dir := filepath.Join(s.Dir, "ssh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, scpSize), 0o600); err != nil {
		return err
	}
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.api.Remove(context.WithoutCancel(ctx), id)) }()
	proxy := fmt.Sprintf("ProxyCommand=%s --data %s ssh --stdio %%n", filepath.Join(s.Bin, "caisson"), s.dir)
	sides := []measure{s.copyWith(nil, "-o", proxy, file, id+":/tmp/file")}
	baseline := "OpenSSH over a veth pair"
	server, err := startSSHD(ctx, dir)
	if err != nil {
		return err
	}
	if server == nil {
		baseline += " (not installed)"
	} else {
		defer func() { err = errors.Join(err, server.end()) }()
		sides = append(sides, s.copyWith(connectVeth, "-i", filepath.Join(dir, "key"), "-P", server.port, file, vethAddress+":"+filepath.Join(dir, "copy")))
	}
	all, err := interleave(ctx, scpSamples, sides...)
	if err != nil {
		return err
	}
	row := newSpeed("ssh.scp", "MB/s", all[0], baseline, append(all, nil)[1])
	if server != nil {
		row = row.withTarget("≥ 0.3 × baseline", row.Ratio >= 0.3)
	}
	s.add(row)
	return nil
}

// copyWith returns a measure of the speed of scp in MB/s. If connect is not nil, scp runs in a new network namespace, for which
// connect is called with the process of scp.
func (s traffic) copyWith(connect func(*os.Process) error, args ...string) measure {
	return func(ctx context.Context) (samples, error) {
		options := []string{"-q", "-o", "Ciphers=" + scpCipher, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-F", "none"}
		// scp starts after a line on standard input, because connect can add devices only after the process has created its namespace.
		cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `read go; exec scp "$@"`, "scp"}, append(options, args...)...)...)
		start, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		if connect != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		}
		output := &excerpt.Head{Limit: 4 << 10}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, output, 5*time.Second
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		if connect != nil {
			err = connect(cmd.Process)
		}
		begin := time.Now()
		if _, writeErr := start.Write([]byte("\n")); err == nil {
			err = writeErr
		}
		if err != nil {
			cmd.Process.Kill()
		}
		if err := errors.Join(err, cmd.Wait()); err != nil {
			return nil, fmt.Errorf("scp: %w; %s", err, output)
		}
		return samples{scpSize / 1e6 / time.Since(begin).Seconds()}, nil
	}
}

// An sshd is a running process of OpenSSH's server.
type sshd struct {
	cmd  *exec.Cmd
	port string // The port on which it listens.
}

// startSSHD starts OpenSSH's server. dir contains its files and the key of its client. It returns nil if the server is not
// installed.
func startSSHD(ctx context.Context, dir string) (*sshd, error) {
	if _, err := os.Stat(sshdPath); err != nil {
		return nil, nil
	}
	for _, name := range []string{"key", "host"} {
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w; %s", err, out)
		}
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd does not start without this directory
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("Port %s\nHostKey %s/host\nAuthorizedKeysFile %s/key.pub\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"+
		"PidFile none\nSubsystem sftp internal-sftp\n", port, dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	x := &sshd{cmd: exec.CommandContext(ctx, sshdPath, "-D", "-f", filepath.Join(dir, "sshd_config")), port: port}
	if err := x.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort(hostAddress, port))
		if err == nil {
			return x, c.Close()
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("sshd does not answer: %w", err), x.end())
		}
	}
}

// end stops the server.
func (x *sshd) end() error {
	_ = x.cmd.Process.Kill() // The server may have ended already.
	_ = x.cmd.Wait()         // The error only reports that the server was killed.
	return nil
}
