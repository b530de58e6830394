// Lets the package declare functions without bodies: those that it takes from gVisor by name (hide.go).
