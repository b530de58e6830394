package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/caisson-dev/caisson"
)

// sshSuffix is the suffix of the names by which ssh reaches sandboxes: the host NAME.caisson is the sandbox NAME.
const sshSuffix = ".caisson"

// rawVariable is the environment variable that ssh sends to the server so that it does not filter unsafe output of a terminal.
const rawVariable = "CAISSON_RAW_TTY"

// sshCmd runs ssh to connect to a sandbox.
type sshCmd struct {
	Sandbox string   `arg:"" help:"Sandbox." complete:"sandbox"`
	Command []string `arg:"" optional:"" passthrough:"" help:"Command, which the shell in the sandbox interprets; without one, a shell."`
	Stdio   bool     `help:"Only connect standard input and output to the sandbox's SSH server, as ssh's ProxyCommand does."`
	Option  []string `name:"option" help:"Option for ssh, such as -L8080:localhost:80; may be repeated." short:"O" placeholder:"OPTION" sep:"none"`
}

func (c *sshCmd) Help() string {
	return "Runs this machine's ssh. scp, sftp, rsync and editors reach sandboxes with the output of: caisson ssh-config\n\n" +
		examples("caisson ssh web", "caisson ssh web make test", "caisson ssh --option=-L8080:localhost:80 web")
}

func (c *sshCmd) Run(ctx context.Context, a *app, api api) error {
	ref := strings.TrimSuffix(c.Sandbox, sshSuffix)
	if c.Stdio {
		return a.relaySSH(ctx, api, ref)
	}
	lines, err := sshOptions(a)
	if err != nil {
		return err
	}
	if _, err := api.Get(ctx, ref); err != nil { // report an error now, because ssh would report it less clearly
		return err
	}
	var args []string
	for _, l := range lines {
		args = append(args, "-o", l.name+"="+l.value)
	}
	args = append(append(args, c.Option...), "--", ref+sshSuffix)
	cmd := exec.CommandContext(ctx, "ssh", append(args, trimDashes(c.Command)...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	if a.globals.RawTTY {
		cmd.Env = append(os.Environ(), rawVariable+"=1")
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() >= 0 {
		return processExit(exit.ExitCode())
	}
	if errors.Is(err, exec.ErrNotFound) {
		return caisson.Errorf(caisson.Unavailable, "this machine has no ssh; install openssh-client, or use caisson shell")
	}
	return err
}

// relaySSH connects this program's streams to the SSH server of a sandbox.
func (a *app) relaySSH(ctx context.Context, api api, ref string) error {
	conn, err := api.ConnectSSH(ctx, ref)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	go func() {
		defer conn.Close() // end the connection with standard input, which ends when ssh has exited
		io.Copy(conn, a.in)
	}()
	_, _ = io.Copy(a.out, conn) // the error is ignored: ssh reports that the connection has ended
	return ctx.Err()
}

// sshOption is a line of ssh's configuration.
type sshOption struct{ name, value string }

// sshOptions returns the options with which ssh reaches sandboxes.
func sshOptions(a *app) ([]sshOption, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	words := []string{self}
	for _, f := range []struct{ name, value string }{
		{"--data", a.globals.Data}, {"--host", a.globals.Host}, {"--account", a.globals.Account}, {"--config", a.globals.Config},
	} {
		if f.value != "" {
			words = append(words, f.name, f.value)
		}
	}
	program := quoteSSH(words)
	return []sshOption{
		{"ProxyCommand", program + " ssh --stdio %n"},
		{"KnownHostsCommand", program + " ssh-config --known-host %H"},
		{"UserKnownHostsFile", "none"},
		{"GlobalKnownHostsFile", "none"},
		{"StrictHostKeyChecking", "yes"},
		{"CanonicalizeHostname", "no"},
		{"Ciphers", "^aes128-gcm@openssh.com"},
		{"SendEnv", rawVariable},
		{"ForwardAgent", "no"},
		{"ForwardX11", "no"},
		{"User", "caisson"},
	}, nil
}

// quoteSSH quotes words for the shell that ssh runs ProxyCommand with, and for ssh itself, which expands %.
func quoteSSH(words []string) string {
	var quoted []string
	for _, w := range words {
		if w == "" || strings.Trim(w, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:=+,@") != "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted = append(quoted, strings.ReplaceAll(w, "%", "%%"))
	}
	return strings.Join(quoted, " ")
}

// sshConfigCmd prints a configuration with which ssh reaches sandboxes.
type sshConfigCmd struct {
	KnownHost string `name:"known-host" help:"Print the server's key for this host name instead, as a line of known_hosts." placeholder:"NAME"`
}

func (c *sshConfigCmd) Help() string {
	return "With it, ssh and all programs that use it reach the sandbox NAME as NAME" + sshSuffix + ".\n\n" +
		examples("caisson ssh-config >> ~/.ssh/config", "scp -r src web.caisson:/work", "caisson ssh-config --known-host '[server]:2222' >> ~/.ssh/known_hosts")
}

func (c *sshConfigCmd) Run(ctx context.Context, a *app, api api) error {
	if c.KnownHost != "" {
		key, err := api.SSHHostKey(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.out, c.KnownHost, key)
		return err
	}
	lines, err := sshOptions(a)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.out, "Host *"+sshSuffix)
	for _, l := range lines {
		fmt.Fprintln(a.out, "    "+l.name, l.value)
	}
	return nil
}
