package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/routes"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sshserver"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

const (
	defaultConfigFile = "/etc/caisson/config.yaml"
	defaultDataDir    = "/var/lib/caisson"
	defaultAgentsDir  = "/etc/caisson/agents"
	maxConfigSize     = 1 << 20 // maximum size in bytes of a configuration file, and of other small files that a command reads
)

// socketMode is the mode of the unix socket. It is not configurable: a process that may open the socket has full rights.
const socketMode fs.FileMode = 0o600

// config contains all settings of Caisson. A flag overrides the environment, and the environment overrides the file.
//
// To add a setting, add a field here, its default in defaultConfig, its check in validate, and its lines in configTemplate; the
// field, default and check of a setting of one part of the daemon are in the package of that part.
type config struct {
	// DataDir is the data directory: images, sandboxes, snapshots, the store and the unix socket.
	DataDir string `yaml:"dataDir" json:"dataDir"`
	// Host is the URL of the daemon that commands use; "" for the daemon of DataDir.
	Host string `yaml:"host" json:"host"`
	// Account is the account that commands act for; "" for the default account of the connection.
	Account string `yaml:"account" json:"account"`
	// CAFile is a PEM file of the certificate authorities that commands trust for Host, instead of the system's.
	CAFile string `yaml:"caFile" json:"caFile"`
	// Listen is the TCP address on which the daemon serves the API, with TLSCert and TLSKey; "" for none.
	Listen  string `yaml:"listen" json:"listen"`
	TLSCert string `yaml:"tlsCert" json:"tlsCert"` // path of the certificate for Listen, in PEM; "" for no TLS
	TLSKey  string `yaml:"tlsKey" json:"tlsKey"`   // path of the private key of TLSCert, in PEM
	// Platform is the way in which gVisor intercepts system calls: auto, systrap or ptrace.
	Platform string           `yaml:"platform" json:"platform"`
	Limits   sandboxes.Limits `yaml:"limits" json:"limits"` // limits of all sandboxes of this machine together

	// PublicAddresses are IP addresses or prefixes that lead to this machine although no network interface of it has them.
	PublicAddresses []string `yaml:"publicAddresses" json:"publicAddresses"`
	// InsecureRegistries are registries, as host or host:port, that may be used without TLS.
	InsecureRegistries []string `yaml:"insecureRegistries" json:"insecureRegistries"`
	// RegistryCA is a PEM file of authorities to trust for registries, besides those that the host trusts.
	RegistryCA string `yaml:"registryCA" json:"registryCA"`
	LogLevel   string `yaml:"logLevel" json:"logLevel"` // lowest level that is logged: debug, info, warn or error
	// EventRetention is how long events are kept.
	EventRetention caisson.Duration `yaml:"eventRetention" json:"eventRetention"`
	// IdleExit is how long a daemon that a command has started runs without client and sandbox.
	IdleExit caisson.Duration `yaml:"idleExit" json:"idleExit"`

	Providers []caisson.Provider `yaml:"providers" json:"providers"` // if these and Models are both empty: the built-in ones
	// ProviderCA is a PEM file of authorities to trust for providers of models, besides those that the host trusts.
	ProviderCA string          `yaml:"providerCA" json:"providerCA"`
	Models     []caisson.Model `yaml:"models" json:"models"` // models that sandboxes can be granted, and their prices
	// DefaultBudget is the maximum cost of the model calls of a sandbox for which no budget was specified.
	DefaultBudget budgetSetting          `yaml:"defaultBudget" json:"defaultBudget"`
	Gateway       models.GatewaySettings `yaml:"gateway" json:"gateway"` // model gateways that several machines share
	SSH           sshserver.Settings     `yaml:"ssh" json:"ssh"`         // listener for SSH clients
	// AgentsDir is a directory with a YAML file for each additional agent.
	AgentsDir  string              `yaml:"agentsDir" json:"agentsDir"`
	Runs       runs.Limits         `yaml:"runs" json:"runs"`             // limits of all runs, and how long they are kept
	Relay      repos.Settings      `yaml:"relay" json:"relay"`           // retries of deliveries, disk space, trusted CAs
	Workspaces workspaces.Settings `yaml:"workspaces" json:"workspaces"` // hidden files, and which changes may be applied
	Ingress    routes.Settings     `yaml:"ingress" json:"ingress"`       // address, domain and certificate of the ingress

	// CredentialKeyFile and CredentialKeyCommand are the source of the key with which credentials are encrypted; if both are
	// empty, the key is read from a file in the data directory or from the environment.
	CredentialKeyFile    string   `yaml:"credentialKeyFile" json:"credentialKeyFile"`
	CredentialKeyCommand []string `yaml:"credentialKeyCommand" json:"credentialKeyCommand"` // command that prints the key

	// Token is the token with which commands authenticate to Host. It is read from the environment only.
	Token caisson.Secret `yaml:"-" json:"token,omitzero"`
	// File is the path of the configuration file, "" if there is none.
	File string `yaml:"-" json:"-"`

	text        []byte   `yaml:"-"` // content of the configuration file
	lookedFor   string   `yaml:"-"` // path at which the configuration file is expected, even if the file does not exist
	fileMissing bool     `yaml:"-"` // the configuration file that a flag or the environment names does not exist
	overridden  []string `yaml:"-"` // keys of settings whose values are not those of the file
	fromEnv     []string `yaml:"-"` // environment variables, as NAME=VALUE, for a daemon that this command starts
}

// defaultConfig returns the settings that apply if no file, environment variable or flag sets them.
func defaultConfig() *config {
	return &config{
		DataDir:        defaultDataDir,
		Platform:       "auto",
		Limits:         sandboxes.DefaultLimits(),
		LogLevel:       "info",
		EventRetention: 30 * day,
		IdleExit:       30 * second,
		DefaultBudget:  budgetSetting{usd: 10 * caisson.Dollar},
		AgentsDir:      defaultAgentsDir,
		Runs:           runs.Limits{}.WithDefaults(),
		Relay:          repos.Settings{}.WithDefaults(),
		Workspaces:     workspaces.Settings{}.WithDefaults(),
		Ingress:        routes.Settings{}.WithDefaults(),
	}
}

// Units of durations of the configuration.
const (
	second caisson.Duration = 1e9
	day                     = 24 * 60 * 60 * second
)

// loadConfig reads the file that g or the environment specifies, or the default file if it exists, and overrides its settings
// with the environment and then with g. The result has not been validated, and has the defaults if the file is missing.
func loadConfig(g globals, getenv func(string) string) (*config, error) {
	c := defaultConfig()
	file := cmp.Or(g.Config, getenv("CAISSON_CONFIG"))
	named := file != ""
	if !named {
		file = defaultConfigFile
	}
	var err error
	if c.lookedFor, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	data, err := readSmall(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.fileMissing = named
	case err != nil:
		return nil, localError("config", file, err)
	default:
		if err := strictyaml.Decode(data, c); err != nil {
			return nil, withFileName(file, err)
		}
		c.File, c.text = c.lookedFor, data
	}
	return c, c.override(g, getenv)
}

// override replaces settings of the file with those of the environment, and then with those of g.
func (c *config) override(g globals, getenv func(string) string) (err error) {
	for _, s := range []struct {
		value *string
		key   string
		env   string
		flag  string
	}{
		{&c.DataDir, "dataDir", "CAISSON_DATA", g.Data},
		{&c.Host, "host", "CAISSON_HOST", g.Host},
		{&c.Account, "account", "CAISSON_ACCOUNT", g.Account},
		{&c.CAFile, "caFile", "CAISSON_CA_FILE", ""},
		{&c.Listen, "listen", "CAISSON_LISTEN", ""},
		{&c.Platform, "platform", "CAISSON_PLATFORM", ""},
		{&c.LogLevel, "logLevel", "CAISSON_LOG_LEVEL", ""},
	} {
		c.replace(s.value, s.key, cmp.Or(s.flag, getenv(s.env)))
	}
	for _, name := range []string{"CAISSON_LISTEN", "CAISSON_PLATFORM", "CAISSON_LOG_LEVEL"} {
		if v := getenv(name); v != "" {
			c.fromEnv = append(c.fromEnv, name+"="+v)
		}
	}
	if t := getenv("CAISSON_TOKEN"); t != "" {
		c.Token = caisson.NewSecret(t)
	}
	if c.DataDir != "" {
		c.DataDir, err = filepath.Abs(c.DataDir)
	}
	return err
}

// replace sets *setting, whose key is key, to value and records that it does not come from the file. It does nothing if value is
// "".
func (c *config) replace(setting *string, key, value string) {
	if value != "" {
		*setting = value
		c.overridden = append(c.overridden, key)
	}
}

// connectionKeys matches a line of the configuration file with one of the settings that commands need to find their daemon.
var connectionKeys = regexp.MustCompile(`(?m)^(dataDir|host|account|caFile):[ \t]+("[^"\\\n]*"|'[^'\n]*'|[^"'#\s]+)[ \t]*(?:#.*)?$`)

// loadConnection returns the defaults, overridden by only those settings of the file, the environment and g that commands need to
// find their daemon. It searches the file for the lines of these settings instead of parsing it, because the file is invalid when
// loadConnection is used.
func loadConnection(g globals, getenv func(string) string) (*config, error) {
	c := defaultConfig()
	data, err := readSmall(cmp.Or(g.Config, getenv("CAISSON_CONFIG"), defaultConfigFile))
	if err != nil {
		return nil, err
	}
	fields := map[string]*string{"dataDir": &c.DataDir, "host": &c.Host, "account": &c.Account, "caFile": &c.CAFile}
	for _, m := range connectionKeys.FindAllSubmatch(data, -1) {
		*fields[string(m[1])] = strings.Trim(string(m[2]), `"'`)
	}
	return c, errors.Join(c.override(g, getenv), checkHost(c.Host, !c.Token.IsZero()))
}

// withFileName adds the name of the file to each error in err.
func withFileName(file string, err error) error {
	var errs []error
	for _, e := range splitErrors(err) {
		errs = append(errs, caisson.Invalidf(caisson.FieldOf(e), "%s, in %s", newErrorReport(e).Message, file))
	}
	return errors.Join(errs...)
}

// validate returns an error for every invalid setting, joined.
func (c *config) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, caisson.Invalidf(field, format, args...))
	}
	below := func(key string, err error) {
		if err == nil {
			return
		}
		for _, e := range splitErrors(err) {
			bad(key+"."+caisson.FieldOf(e), "%s", newErrorReport(e).Message)
		}
	}
	switch {
	case c.DataDir == "":
		bad("dataDir", "is empty; the default is %s", defaultDataDir)
	case !filepath.IsAbs(c.DataDir):
		bad("dataDir", "%q is not an absolute path", c.DataDir)
	case len(c.SocketPath()) > maxSocketPath:
		bad("dataDir", "is too long: the path of the socket in it may have at most %d bytes", maxSocketPath)
	}
	if err := checkHost(c.Host, !c.Token.IsZero()); err != nil {
		bad("host", "%s", err)
	}
	c.validateListener(bad)
	below("runs", c.Runs.Validate())
	below("relay", c.Relay.Validate())
	below("workspaces", c.Workspaces.Validate())
	if c.AgentsDir != "" && !filepath.IsAbs(c.AgentsDir) {
		bad("agentsDir", "%q is not an absolute path", c.AgentsDir)
	}
	if !slices.Contains(platforms(), c.Platform) {
		bad("platform", "%q is not one of %s", c.Platform, strings.Join(platforms(), ", "))
	}
	if !slices.Contains(logLevels(), c.LogLevel) {
		bad("logLevel", "%q is not one of %s", c.LogLevel, strings.Join(logLevels(), ", "))
	}
	below("limits", c.Limits.Validate())
	for i, a := range c.PublicAddresses {
		if _, err := parsePrefix(a); err != nil {
			bad(fmt.Sprintf("publicAddresses[%d]", i), "%q is neither an address nor a prefix like 203.0.113.0/28", a)
		}
	}
	for i, r := range c.InsecureRegistries {
		if u, err := url.Parse("//" + r); err != nil || u.Host != r || u.Hostname() == "" {
			bad(fmt.Sprintf("insecureRegistries[%d]", i), "%q is not host or host:port", r)
		}
	}
	if c.CredentialKeyFile != "" && len(c.CredentialKeyCommand) > 0 {
		bad("credentialKeyCommand", "the key of credentials comes from credentialKeyFile or from credentialKeyCommand; set one")
	}
	errs = append(errs, models.Validate(c.Providers, c.Models))
	below("gateway", c.Gateway.Validate())
	below("ingress", c.Ingress.Validate())
	if c.Ingress.Listen != "" && c.Ingress.Listen == c.Listen {
		bad("ingress.listen", "is that of the API; routes need an address of their own")
	}
	below("ssh", c.SSH.Validate())
	return c.withPosition(errors.Join(errs...))
}

// withPosition adds the file name and the line to each error in err that is about a setting in the configuration file.
func (c *config) withPosition(err error) error {
	if err == nil || c.File == "" {
		return err
	}
	var errs []error
	for _, e := range splitErrors(err) {
		if slices.Contains(c.overridden, caisson.FieldOf(e)) {
			errs = append(errs, e)
			continue
		}
		if placed := strictyaml.AddLines(c.text, e); placed.Error() != e.Error() {
			e = withFileName(c.File, placed)
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// validateListener checks the settings of the API's TCP listener, and that the paths of certificates and keys are absolute. It
// calls bad for each invalid setting.
func (c *config) validateListener(bad func(field, format string, args ...any)) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tlsCert", "tlsCert and tlsKey belong together; set both or none")
	}
	for _, f := range []struct{ field, path string }{{"tlsCert", c.TLSCert}, {"tlsKey", c.TLSKey}, {"caFile", c.CAFile}, {"registryCA", c.RegistryCA}, {"providerCA", c.ProviderCA}, {"credentialKeyFile", c.CredentialKeyFile}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			bad(f.field, "%q is not an absolute path", f.path)
		}
	}
	if c.Listen == "" {
		return
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		bad("listen", "%q is not host:port", c.Listen)
		return
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n < 0 {
		bad("listen", "%q is not a port", port)
	}
	if !reach.Loopback(host) && c.TLSCert == "" {
		bad("listen", "%s can be reached from other machines, so it needs tlsCert and tlsKey; or listen on 127.0.0.1", c.Listen)
	}
}

// parsePrefix parses an IP prefix, or an IP address as the prefix that contains only this address.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err == nil && p.Addr().Is4In6() {
		err = errors.New("an IPv4 prefix is written without ::ffff: before it")
	}
	return p.Masked(), err
}

// publicPrefixes returns PublicAddresses as prefixes. It skips invalid ones, which validate reports.
func (c *config) publicPrefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, a := range c.PublicAddresses {
		if p, err := parsePrefix(a); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// checkHost returns an error if host is neither "" nor a valid URL of a daemon, or if a token would be sent to it over a network
// unencrypted. token tells whether the client has a token.
func checkHost(host string, token bool) error {
	if host == "" {
		return nil
	}
	u, err := url.Parse(host)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL; write for example https://host:7443", host)
	case u.User != nil:
		return errors.New("must not hold a password; the token goes into CAISSON_TOKEN")
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return nil
	case (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "":
		return fmt.Errorf("%q is not a URL like https://host:7443 or unix:///path/to/caisson.sock", host)
	case u.Scheme == "http" && !reach.Loopback(u.Hostname()) && token:
		return fmt.Errorf("the token would be sent over the network unencrypted; use https://%s", u.Host)
	}
	return nil
}

// maxSocketPath is the maximum length in bytes of the path of a unix socket: the size of sockaddr_un.sun_path without its NUL.
const maxSocketPath = 107

// SocketPath is the path of the unix socket on which the daemon of c.DataDir listens.
func (c *config) SocketPath() string { return filepath.Join(c.DataDir, "caisson.sock") }

// platforms returns the valid values of the setting platform, which says how gVisor intercepts system calls.
func platforms() []string { return []string{"auto", "systrap", "ptrace"} }

// logLevels returns the valid values of the setting logLevel.
func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// configOrDefaults loads and validates the settings of this invocation. If the file that a flag or the environment names does not
// exist, it uses the defaults, also for the rest of the invocation. It is for commands that write this file or do not need it.
func configOrDefaults(a *app) (*config, error) {
	c, err := loadConfig(a.globals, a.getenv)
	if err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	a.cfg = c
	return c, nil
}

// connection returns the validated settings of this invocation, which it loads once. If the configuration is invalid, it prints a
// warning and returns only the settings that are needed to find the daemon, provided that these name a host or that the daemon on
// this machine is running: commands must still reach a running daemon when the file has an error.
func connection(ctx context.Context, a *app) (*config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	c, invalid := configOrDefaults(a)
	if invalid == nil && c.fileMissing {
		a.cfg, invalid = nil, c.missingError()
	}
	if invalid == nil {
		return c, nil
	}
	c, err := loadConnection(a.globals, a.getenv)
	if err != nil {
		return nil, invalid
	}
	if c.Host == "" {
		if up, err := isListening(ctx, c.SocketPath()); !up || err != nil {
			return nil, invalid
		}
	}
	note := "the running daemon still uses the settings that it has loaded"
	if c.Host != "" {
		note = "only its host, account and caFile are used"
	}
	a.infof("caisson: the configuration is invalid; %s: %s", note, safetext.Escape(splitErrors(invalid)[0].Error()))
	a.cfg = c
	return c, nil
}

// missingError returns the error for a configuration file that a flag or the environment names and that does not exist.
func (c *config) missingError() error {
	return caisson.Invalidf("config", "%s does not exist; to write it: caisson init %s; for the defaults, leave out --config and CAISSON_CONFIG", c.lookedFor, c.lookedFor)
}
