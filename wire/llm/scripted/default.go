package scripted

// Default is a script for demonstrations, for any model: it greets, uses a shell if offered one, and repeats the user's message.
const Default = `delay: {first: 200ms, chunk: 20ms}
turns:
- when: {pattern: '(?i)^\W*(hello|hi|hey|good (morning|evening))\b'}
  text: "Hello! I am a scripted model: I answer from a script and know nothing. Ask me to list files, or say anything."
- when: {pattern: '(?i)\b(list|show)\b.*\b(files|directory|folder)\b'}
  text: "I look."
  calls: [{name: bash, arguments: '{"command": "ls -la"}'}]
- when: {pattern: '(?i)\b(list|show)\b.*\b(files|directory|folder)\b'}
  text: "I look."
  calls: [{name: Bash, arguments: '{"command": "ls -la", "description": "List files"}'}]
- when: {tool: bash}
  text: "This is what I found:\n\n{{result}}"
- when: {tool: Bash}
  text: "This is what I found:\n\n{{result}}"
fallback:
  text: "You said: {{last}}"
`
