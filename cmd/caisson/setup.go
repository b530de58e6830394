package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// setupCmd prompts for a provider, its key and a model, and writes them into the configuration.
type setupCmd struct {
	NoTest bool `help:"Do not call the model to try it."`
}

func (c *setupCmd) Help() string {
	return "It asks at the terminal for a provider, its key, which is not shown, and a model; stores the key; adds the provider and its models to the " +
		"configuration file, the chosen model first; and calls it once, which costs less than a cent. A file with providers or models of its own is not " +
		"changed. Where there is no terminal, store a key with \"caisson credential set\".\n\n" +
		examples("sudo caisson setup", "caisson setup --config ./caisson.yaml")
}

// ProvideSetup checks the terminal and the configuration file, before a daemon is started.
func (c *setupCmd) ProvideSetup(a *app) (*setup, error) {
	if !isTerminal(a.in) {
		return nil, usagef("setup", "standard input is not a terminal; store a key instead: caisson credential set ANTHROPIC_API_KEY -")
	}
	cfg, err := configOrDefaults(a)
	if err != nil {
		return nil, err
	}
	if cfg.Host != "" {
		return nil, usagef("setup", "it is for the daemon of this machine; run it where %s runs", cfg.Host)
	}
	s := &setup{app: a, file: cfg.lookedFor}
	if s.text, err = readSmall(s.file); errors.Is(err, fs.ErrNotExist) {
		s.text, err = []byte(configTemplate), nil
	}
	if err != nil {
		return nil, localError("config", s.file, err)
	}
	if key := regexp.MustCompile(`(?m)^(providers|models)[ \t]*:`).FindSubmatch(s.text); key != nil {
		return nil, caisson.Errorf(caisson.Conflict, "%s has %s already: edit it, and see caisson model ls", s.file, key[1])
	}
	return s, nil
}

func (c *setupCmd) Run(ctx context.Context, a *app, s *setup, api api) (err error) {
	if s.keys, err = newKeyStore(a, api); err != nil {
		return err
	}
	p, list, err := s.provider(ctx)
	if err != nil {
		return err
	}
	if list, err = s.chooseModel(ctx, p, list); err != nil {
		return err
	}
	if err := s.write(p, list); err != nil {
		return err
	}
	if _, err := api.Reload(ctx); err != nil {
		return err
	}
	// The path of the daemon's configuration file is checked now, because a daemon that started without one reports it only after
	// a reload.
	if st, err := api.Status(ctx); err == nil && readsOtherFile(st, s.file) {
		return caisson.Errorf(caisson.Conflict, "wrote %s, but %s", s.file, otherFileNote(a, st, s.file))
	}
	a.infof("wrote %s: runs that name no model use %s", s.file, list[0].Alias)
	if c.NoTest {
		return nil
	}
	a.infof("calling %s once, with caisson run caisson ...", list[0].Alias)
	one, most := int64(1), caisson.Dollar/20
	return runConsole{a, api}.startAndFollow(ctx, false, func(ctx context.Context) (*caisson.Run, error) {
		return api.StartRun(ctx, caisson.RunRequest{
			Agent: "caisson", Model: list[0].Alias, Prompt: "Answer with the word ready and do nothing else.",
			Limits: caisson.AgentLimits{Calls: &one, Cost: &most},
		})
	})
}

// setup is the state of one execution of setupCmd, which talks to the user on the terminal.
type setup struct {
	*app
	file string    // path of the configuration file
	text []byte    // content of the configuration file, or configTemplate if the file does not exist
	keys *keyStore // stores the key that the user enters
}

// The choice of a server with OpenAI's API that does not belong to a vendor. The provider for it has a credential of its own, so
// that no vendor's key is sent to the server.
const (
	compatible           = "another server with OpenAI's API: Ollama, vLLM, LiteLLM and others" // text of the choice
	compatibleProvider   = "server"                                                             // name of the provider
	compatibleCredential = "SERVER_API_KEY"                                                     // name of its credential
)

// provider prompts for a provider and its key, stores the key, and returns the provider with its models.
func (s *setup) provider(ctx context.Context) (p caisson.Provider, list []caisson.Model, err error) {
	var names []string
	for _, v := range providerVariables {
		names = append(names, v.vendor)
	}
	i, err := s.choose(ctx, "Whose models do you use?", append(names, compatible))
	if err != nil {
		return p, nil, err
	}
	if i == len(names) {
		return s.compatibleServer(ctx)
	}
	v := providerVariables[i]
	p = findProvider(s.keys.offer, v.provider)
	stored, err := s.hasKey(ctx, p.Credential)
	if err != nil {
		return p, nil, err
	}
	if !stored { // if a key is stored, the environment must not replace p's server, to which that key belongs
		key, err := s.vendorKey(ctx, v)
		if err != nil {
			return p, nil, err
		}
		own, models, err := s.keys.server(ctx, v, key)
		if err != nil {
			return p, nil, err
		}
		if _, err := s.keys.api.SetCredential(ctx, p.Credential, key); err != nil {
			return p, nil, err
		}
		if own != nil {
			p, list = *own, models
		}
	}
	if len(list) == 0 {
		list = slices.DeleteFunc(slices.Clone(s.keys.offer.Models), func(m caisson.Model) bool { return m.Provider != v.provider })
	}
	return p, list, nil
}

// compatibleServer prompts for the URL of a server that does not belong to a vendor, and for the server's key, which may be
// empty. It stores the key, and returns the provider with the models that the server lists.
func (s *setup) compatibleServer(ctx context.Context) (p caisson.Provider, list []caisson.Model, err error) {
	for valid := false; !valid; {
		base, err := s.ask(ctx, "Its URL, for example http://127.0.0.1:11434/v1: ")
		if err != nil {
			return p, nil, err
		}
		p = caisson.Provider{Name: compatibleProvider, Kind: caisson.ProviderOpenAI, BaseURL: strings.TrimSuffix(base, "/")}
		err = models.Validate([]caisson.Provider{p}, nil)
		if valid = err == nil; !valid {
			fmt.Fprintln(s.err, "The URL "+newErrorReport(splitErrors(err)[0]).Message+".")
		}
	}
	key, err := s.promptSecret(ctx, "Its key, which is not shown; Enter if it needs none: ")
	if err != nil && caisson.FieldOf(err) != "value" { // an error in the field value means that no key was entered
		return p, nil, err
	}
	served, err := servedModels(ctx, p.BaseURL, key)
	if err != nil {
		return p, nil, caisson.Invalidf("url", "%s", err)
	}
	if !key.IsZero() {
		p.Credential = compatibleCredential
		stored, err := s.hasKey(ctx, p.Credential)
		switch {
		case err == nil && stored:
			_, err = s.keys.api.RotateCredential(ctx, p.Credential, key)
		case err == nil:
			_, err = s.keys.api.SetCredential(ctx, p.Credential, key)
		}
		if err != nil {
			return p, nil, err
		}
	}
	return p, ownModels(p, served, nil), nil
}

// hasKey reports whether a credential of this name is stored.
func (s *setup) hasKey(ctx context.Context, credential string) (bool, error) {
	stored, err := s.keys.api.ListCredentials(ctx)
	return slices.ContainsFunc(stored, func(c *caisson.Credential) bool { return c.Name == credential }), err
}

// vendorKey returns the key of a vendor. It prompts for the key unless an environment variable contains it.
func (s *setup) vendorKey(ctx context.Context, v keyVariables) (caisson.Secret, error) {
	if name, key := s.keys.key(v); name != "" {
		s.infof("The key is taken from %s.", name)
		return key, nil
	}
	return s.promptSecret(ctx, "Its key, which is not shown: ")
}

// maxOffered is the maximum number of models in the list from which the user chooses one.
const maxOffered = 20

// chooseModel prompts for one of the models in list, and returns list with that model at the beginning. If list is empty, it
// prompts for the name of a model.
func (s *setup) chooseModel(ctx context.Context, p caisson.Provider, list []caisson.Model) ([]caisson.Model, error) {
	if len(list) == 0 {
		name, err := s.ask(ctx, "The name of its model: ")
		if err != nil {
			return nil, err
		}
		if list = ownModels(p, []servedModel{{ID: name}}, nil); len(list) == 0 {
			err = caisson.Invalidf("model", "%.100q cannot be the name of a model", name)
		}
		return list, err
	}
	var names []string
	for _, m := range list[:min(len(list), maxOffered)] {
		price := "no price is known: calls are refused until its entry has one"
		switch {
		case m.Free:
			price = "free"
		case m.Prices != nil:
			price = fmt.Sprintf("%s in, %s out", m.Prices.Input, m.Prices.Output)
		}
		names = append(names, fmt.Sprintf("%-32s %s", safetext.Escape(m.Alias), price))
	}
	i, err := s.choose(ctx, "Which model do runs use that name none? Prices are in US dollars per million tokens.", names)
	if err != nil {
		return nil, err
	}
	chosen := list[i]
	return slices.Insert(slices.Delete(slices.Clone(list), i, i+1), 0, chosen), nil
}

// write adds the provider and its models to the configuration file.
func (s *setup) write(p caisson.Provider, list []caisson.Model) error {
	text := strings.TrimRight(string(s.text), "\n") + fmt.Sprintf("\n\n# Added by caisson setup, %s. Built-in prices: %s.\nproviders:\n", time.Now().Format(time.DateOnly), models.Builtin().Builtin)
	line := func(v any) error {
		b, err := json.Marshal(v) // JSON is also YAML
		text += "- " + string(b) + "\n"
		return err
	}
	if err := line(p); err != nil {
		return err
	}
	text += "models:\n"
	for _, m := range list {
		if err := line(m); err != nil {
			return err
		}
	}
	check := defaultConfig()
	err := strictyaml.Decode([]byte(text), check)
	if err == nil {
		err = check.validate()
	}
	if err != nil {
		return caisson.Invalidf("config", "%s would not be valid with the provider (%s); add it by hand: caisson init writes a file with examples", s.file, newErrorReport(splitErrors(err)[0]).text())
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(s.file); err == nil {
		mode = info.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return localError("config", s.file, err)
	}
	return localError("config", s.file, durable.Write(s.file, func(f *os.File) error {
		_, err := io.WriteString(f, text)
		return errors.Join(err, f.Chmod(mode))
	}))
}

// choose prompts for an entry of list and returns its index. An empty answer selects the first entry.
func (s *setup) choose(ctx context.Context, question string, list []string) (int, error) {
	fmt.Fprintln(s.err, question)
	for i, text := range list {
		fmt.Fprintf(s.err, "  %2d  %s\n", i+1, text)
	}
	for {
		answer, err := s.readLine(ctx, fmt.Sprintf("1 to %d [1]: ", len(list)))
		if err != nil {
			return 0, err
		}
		if answer == "" {
			return 0, nil
		}
		if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(list) {
			return n - 1, nil
		}
		fmt.Fprintf(s.err, "%.40q is none of the numbers from 1 to %d; Enter means 1.\n", answer, len(list))
	}
}

// ask prompts until the answer is not empty, and returns the answer.
func (s *setup) ask(ctx context.Context, prompt string) (string, error) {
	for {
		if answer, err := s.readLine(ctx, prompt); err != nil || answer != "" {
			return answer, err
		}
	}
}

// readLine prompts for a line. It reads no byte after the line, because the next line may be a key, which is read without echo.
// The terminal delivers whole lines.
func (s *setup) readLine(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(s.err, prompt)
	text, err := await(ctx, func() (line []byte, err error) {
		for b := make([]byte, 1); len(line) < maxLine; line = append(line, b[0]) {
			if _, err := s.in.Read(b); err != nil || b[0] == '\n' {
				return line, err
			}
		}
		return line, nil
	})
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(s.err)
		return "", context.Cause(ctx)
	case err != nil:
		return "", caisson.Invalidf("setup", "the input ended before setup did; nothing was written")
	}
	return strings.TrimSpace(string(text)), nil
}
