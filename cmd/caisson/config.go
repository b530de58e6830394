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
	maxConfigSize     = 1 << 20
)

// socketMode is the mode of the unix socket. It is not configurable: a process that may open the socket has full rights.
const socketMode fs.FileMode = 0o600

// config contains all settings of Caisson. A flag overrides the environment, and the environment overrides the file.
//
// To add a setting, add a field here, its default in defaultConfig, its check in validate, and its lines in configTemplate; the
// field, default and check of a setting of one part of the daemon are in the package of that part.
type config struct {
	DataDir  string           `yaml:"dataDir" json:"dataDir"`
	Host     string           `yaml:"host" json:"host"`
	Account  string           `yaml:"account" json:"account"`
	CAFile   string           `yaml:"caFile" json:"caFile"`
	Listen   string           `yaml:"listen" json:"listen"`
	TLSCert  string           `yaml:"tlsCert" json:"tlsCert"`
	TLSKey   string           `yaml:"tlsKey" json:"tlsKey"`
	Platform string           `yaml:"platform" json:"platform"`
	Limits   sandboxes.Limits `yaml:"limits" json:"limits"`

	PublicAddresses    []string         `yaml:"publicAddresses" json:"publicAddresses"`
	InsecureRegistries []string         `yaml:"insecureRegistries" json:"insecureRegistries"`
	RegistryCA         string           `yaml:"registryCA" json:"registryCA"`
	LogLevel           string           `yaml:"logLevel" json:"logLevel"`
	EventRetention     caisson.Duration `yaml:"eventRetention" json:"eventRetention"`
	IdleExit           caisson.Duration `yaml:"idleExit" json:"idleExit"`

	Providers     []caisson.Provider     `yaml:"providers" json:"providers"`
	ProviderCA    string                 `yaml:"providerCA" json:"providerCA"`
	Models        []caisson.Model        `yaml:"models" json:"models"`
	DefaultBudget budgetSetting          `yaml:"defaultBudget" json:"defaultBudget"`
	Gateway       models.GatewaySettings `yaml:"gateway" json:"gateway"`
	SSH           sshserver.Settings     `yaml:"ssh" json:"ssh"`
	AgentsDir     string                 `yaml:"agentsDir" json:"agentsDir"`
	Runs          runs.Limits            `yaml:"runs" json:"runs"`
	Relay         repos.Settings         `yaml:"relay" json:"relay"`
	Workspaces    workspaces.Settings    `yaml:"workspaces" json:"workspaces"`
	Ingress       routes.Settings        `yaml:"ingress" json:"ingress"`

	// CredentialKeyFile and CredentialKeyCommand are the source of the key with which credentials are encrypted; if both are
	// empty, it is a file in the data directory, or the environment.
	CredentialKeyFile    string   `yaml:"credentialKeyFile" json:"credentialKeyFile"`
	CredentialKeyCommand []string `yaml:"credentialKeyCommand" json:"credentialKeyCommand"`

	// Token is read from the environment only.
	Token caisson.Secret `yaml:"-" json:"token,omitzero"`
	// File is the path of the configuration file, "" if there is none.
	File string `yaml:"-" json:"-"`

	text       []byte   `yaml:"-"` // content of File
	lookedFor  string   `yaml:"-"` // path of the configuration file, even if the file does not exist
	missing    bool     `yaml:"-"` // the file that a flag or the environment names does not exist
	overridden []string `yaml:"-"` // keys of settings whose values are not those of the file
	fromEnv    []string `yaml:"-"` // environment variables, as NAME=VALUE, for a daemon that this command starts
}

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
		c.missing = named
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

// override overrides the settings of the file with the environment and then with g.
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

// replace replaces the setting key unless value is empty.
func (c *config) replace(setting *string, key, value string) {
	if value != "" {
		*setting = value
		c.overridden = append(c.overridden, key)
	}
}

// connectionKeys matches a line of the file with a setting that commands need to find their daemon.
var connectionKeys = regexp.MustCompile(`(?m)^(dataDir|host|account|caFile):[ \t]+("[^"\\\n]*"|'[^'\n]*'|[^"'#\s]+)[ \t]*(?:#.*)?$`)

// loadConnection returns only the settings that commands need to find their daemon. It searches the file for their lines instead
// of parsing it, because it is used when the file is invalid.
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
		errs = append(errs, caisson.Invalidf(caisson.FieldOf(e), "%s, in %s", reportOf(e).Message, file))
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
			bad(key+"."+caisson.FieldOf(e), "%s", reportOf(e).Message)
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
	if c.EventRetention < 0 || c.IdleExit < 0 {
		bad("eventRetention", "durations must not be negative")
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
	return c.withPlace(errors.Join(errs...))
}

// withPlace adds line and file to each error in err whose setting is in the configuration file.
func (c *config) withPlace(err error) error {
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

// parsePrefix parses an address or a prefix.
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

// publicPrefixes returns PublicAddresses as prefixes; validate has checked them.
func (c *config) publicPrefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, a := range c.PublicAddresses {
		if p, err := parsePrefix(a); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// checkHost checks the URL of a daemon. A token must not be sent over a network unencrypted.
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

// maxSocketPath is the size of sockaddr_un.sun_path without its NUL.
const maxSocketPath = 107

// SocketPath is the path of the socket on which the daemon of this data directory listens.
func (c *config) SocketPath() string { return filepath.Join(c.DataDir, "caisson.sock") }

func platforms() []string { return []string{"auto", "systrap", "ptrace"} }
func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// configOrDefaults is like [connection], but if the file that a flag or the environment names does not exist, it returns the
// defaults, and so does connection from then on. It is for commands that write this file or do not need it.
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

// connection returns the validated settings of this invocation, which it loads once. If they are invalid, it prints a warning and
// returns the settings of [loadConnection], provided that these name a host or that their daemon on this machine is running:
// commands must still reach a running daemon when the file has an error.
func connection(ctx context.Context, a *app) (*config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	c, invalid := configOrDefaults(a)
	if invalid == nil && c.missing {
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
