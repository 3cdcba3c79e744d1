"""Questions of people and programs, and the answers as JSON."""
