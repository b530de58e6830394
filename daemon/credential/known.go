package credential

// A KnownName is the name of an environment variable that commonly holds a secret.
type KnownName struct {
	Name string
	Kind string // description of the secret
}

// Known returns the variables that caisson credential import includes by default, with descriptions.
func Known() []KnownName {
	return []KnownName{
		{"ANTHROPIC_API_KEY", "Anthropic API key"},
		{"OPENAI_API_KEY", "OpenAI API key"},
		{"GEMINI_API_KEY", "Google Gemini API key"},
		{"OPENROUTER_API_KEY", "OpenRouter API key"},
		{"GITHUB_TOKEN", "GitHub token"},
		{"TELEGRAM_BOT_TOKEN", "Telegram bot token"},
		{"SLACK_BOT_TOKEN", "Slack bot token"},
		{"DISCORD_BOT_TOKEN", "Discord bot token"},
		{"OPENCLAW_GATEWAY_PASSWORD", "OpenClaw gateway password"},
		{"OPENCLAW_GATEWAY_TOKEN", "OpenClaw gateway token"},
	}
}

// Kind returns the description of the secret in the variable with a known name, or "" if the name is not known.
func Kind(name string) string {
	for _, k := range Known() {
		if k.Name == name {
			return k.Kind
		}
	}
	return ""
}
